"""How many rounds of a search could be trained ahead, and at what waste: `python tests/bench/speculation.py`.

While a round trains, its outcomes are guessed from the fit so far, and the trials of the next round follow from the
guess. A round is saved where all of its trials were guessed. Nothing is trained: a trial holds by a logistic curve.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from capbench.measure.estimate.posterior import Observation
from capbench.measure.estimate.search import SearchPlan, next_trials
from capbench.measure.estimate.threshold import Axis, Status, fit_threshold
from capbench.measure.presets import preset_named

N_SEARCHES = 24
STEEPNESS = (0.02, 0.05, 0.1)
SHORTFALL = 0.02
"""Of a trial that does not hold."""
Trials = set[tuple[int, int]]


@dataclass
class Count:
    """Of all searches: trials guessed, those asked for later, rounds, and those that were guessed as a whole."""

    guessed: int = 0
    used: int = 0
    rounds: int = 0
    saved: int = 0


def observe(at: int, seed: int, midpoint: float, steepness: float, chance: float) -> Observation:
    """A trial that holds with the probability of the curve."""
    exponent = math.log(at / midpoint) / max(steepness, 1e-3)
    held = chance < 1 / (1 + math.exp(max(-50.0, min(50.0, exponent))))
    return Observation(at, seed, held, None if held else SHORTFALL)


def guess(observations: list[Observation], asked: Trials, plan: SearchPlan, n_guesses: int) -> Trials:
    """The trials of the next round, for each of several guesses of what the round in training will show."""
    found = fit_threshold(observations, plan.axis)
    centre = found.midpoint or found.estimate or math.sqrt(math.prod(plan.bracket))
    guessed: Trials = set()
    for number in range(n_guesses):
        chance = random.Random(number)
        spread = found.deviation if found.status is Status.ESTIMATED else 0.0
        midpoint = centre * math.exp(chance.gauss(0, spread)) if n_guesses > 1 else centre
        outcomes = [
            observe(at, seed, midpoint, found.steepness, chance.random() if n_guesses > 1 else 0.5)
            for at, seed in sorted(asked)
        ]
        guessed |= set(next_trials(observations + outcomes, plan))
    return guessed


def search(number: int, n_guesses: int, count: Count) -> None:
    """One search with the limits of the paper preset."""
    chance, preset = random.Random(number), preset_named("paper")
    midpoint, steepness = chance.uniform(150, 2000), chance.choice(STEEPNESS)
    plan = SearchPlan(
        Axis(1, 16384),
        (midpoint / 16, midpoint * 4),
        seeds=preset.seeds,
        first_points=preset.first_points,
        first_seeds=preset.first_seeds,
        batch=preset.batch,
        budget=preset.budget,
    )
    observations: list[Observation] = []
    rounds: list[Trials] = []
    guesses: list[Trials] = []
    while asked := set(next_trials(observations, plan)):
        rounds.append(asked)
        guesses.append(guess(observations, asked, plan, n_guesses) if observations else set())
        for at, seed in sorted(asked):
            chance = random.Random(f"{number} {at} {seed}")
            observations.append(observe(at, seed, midpoint, steepness, chance.random()))
    for index, guessed in enumerate(guesses):
        later: Trials = set().union(*rounds[index + 1 :])
        count.guessed += len(guessed)
        count.used += len(guessed & later)
    for guessed, following in zip(guesses[:-1], rounds[1:], strict=True):
        count.rounds += 1
        count.saved += following <= guessed


def main() -> None:
    """Prints a line per number of guesses."""
    for n_guesses in (1, 16):
        count = Count()
        for number in range(N_SEARCHES):
            search(number, n_guesses, count)
        waste = 1 - count.used / count.guessed
        print(f"{n_guesses} guesses: {count.saved} of {count.rounds} rounds saved, {waste:.0%} of the trials wasted")


if __name__ == "__main__":
    main()
