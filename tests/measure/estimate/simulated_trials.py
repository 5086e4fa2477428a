"""Simulated searches: trials drawn from a known success curve, given to the real search and the real summary.

`python -m tests.measure.estimate.simulated_trials` prints bias, coverage and trials of every regime; `--searches N` and
`--only TEXT` say how many and which.

The metric of a failed trial follows what the published records show: at a load that is 5 % above the capacity the
shortfall is about 0.02, at 15 % 0.08, at 30 % 0.25, with a scatter of a factor 1.5; it is a whole number of facts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from capbench.contract.task import Criterion
from capbench.documents.result import Capacity, Protocol, Trial, TrialStatus
from capbench.measure import run
from capbench.measure.estimate.search import SearchPlan
from capbench.measure.estimate.summary import axis_of, leading_rate, least_passing, summarise
from capbench.measure.estimate.threshold import ESTIMATOR_VERSION
from capbench.measure.presets import PRESETS

LOW, HIGH = 20.0, 1000.0
"""Midpoints are drawn between these, uniformly on a log scale."""


@dataclass(frozen=True)
class Regime:
    """A kind of success curve, and the search that meets it."""

    scale: float = 0.12
    lapse: float = 0.0
    budget: int = 32
    preset: str = "quick"
    offsets: tuple[float, ...] = (0.0,)
    """Log capacity of each learning rate relative to the midpoint."""
    metric: str = "typical"
    shared: float = 0.0
    """Share of the variance of a trial's margin that its problem and initial weights decide, at every rate alike."""
    rising: bool = False

    def __str__(self) -> str:
        rates = "equal" if len(set(self.offsets)) == 1 else "unequal"
        texts = [f"budget {self.budget}", f"{len(self.offsets)} {rates}", f"scale {self.scale:g}"]
        texts += [f"lapse {self.lapse:g}"] if self.lapse else []
        texts += [self.metric] if self.metric != "typical" else []
        texts += [f"shared {self.shared:g}"] if self.shared else []
        texts += ["rising"] if self.rising else []
        texts += [self.preset] if self.preset != "quick" else []
        return ", ".join(texts)


@dataclass
class SimulatedSession:
    """Stands in for the session of a run: trains by drawing."""

    regime: Regime
    midpoint: float
    rng: np.random.Generator
    protocol: Protocol
    trials: list[Trial] = field(default_factory=list)

    def measure(self, points: Sequence[tuple[int, int]], rates: Sequence[float | None]) -> None:
        """Draws a trial at each point and rate."""
        for at, seed in points:
            common = self.rng.logistic()
            self.trials += [self._trial(at, seed, rate, common) for rate in rates]

    def true_capacity(self, rate: float | None) -> float:
        """The midpoint of the success curve of a learning rate."""
        return self.midpoint * math.exp(self.regime.offsets[self.protocol.learning_rates.index(cast("float", rate))])

    def _trial(self, at: int, seed: int, rate: float | None, common: float) -> Trial:
        regime, shared = self.regime, self.regime.shared
        noise = math.sqrt(shared) * common + math.sqrt(1 - shared) * self.rng.logistic()
        margin = math.log(self.true_capacity(rate) / at) * (-1 if regime.rising else 1) + regime.scale * noise
        lapsed = self.rng.random() < regime.lapse
        held = margin >= 0 and not lapsed
        shortfall = 0.0 if held else self.rng.uniform(0, 0.6) if lapsed else self._shortfall(-margin)
        load = 200 if regime.rising else at
        n_wrong = math.floor(0.01 * load) + max(1, round(shortfall * load)) if not held else 0
        accuracy = max(0.0, 1 - n_wrong / load)
        return Trial.model_construct(
            key=f"{len(self.trials)}",
            load=load,
            budget=at if regime.rising else None,
            seed=seed,
            learning_rate=rate,
            status=TrialStatus.HELD if held else TrialStatus.NOT_HELD,
            steps=100,
            metrics={"accuracy": accuracy},
            data={},
        )

    def _shortfall(self, missed: float) -> float:
        """The shortfall of a trial whose load is too large by so much on the log scale."""
        scatter = math.exp(0.4 * self.rng.normal())
        return {
            "typical": lambda: min(0.9, 0.7 * missed**1.3 * scatter),
            "steep": lambda: min(0.9, 4 * missed * scatter),
            "flat": lambda: min(0.9, 0.03 * missed**0.5 * scatter),
            "jump": lambda: min(0.9, 0.1 * scatter + missed),
            "unrelated": lambda: self.rng.uniform(0, 0.5),
        }[self.regime.metric]()


@dataclass(frozen=True)
class Answer:
    """What a search found, and what is true."""

    capacity: Capacity
    truth: float
    n_trials: int
    """Trials at the leading rate."""

    @property
    def is_covered(self) -> bool:
        """Whether the interval has the truth in it; an open end has no limit."""
        low, high = self.capacity.ci_low, self.capacity.ci_high
        return (low is None or low <= self.truth) and (high is None or self.truth <= high)

    @property
    def log_error(self) -> float:
        """Logarithm of estimate / truth."""
        return math.log(self.capacity.estimate / self.truth)


def simulate(regime: Regime, rng: np.random.Generator, ci_width: float = 0.05) -> Answer:
    """One search on one success curve, at the end of which the trials are summarised."""
    preset = PRESETS[regime.preset]
    extra: dict[str, Any] = {"estimator": ESTIMATOR_VERSION} if "estimator" in Protocol.model_fields else {}
    protocol = Protocol(
        preset=preset.name,
        criterion=Criterion("accuracy", 0.99),
        seeds=preset.seeds,
        learning_rates=tuple(0.01 * 2**i for i in range(len(regime.offsets))),
        steps=1000,
        dtype="float32",
        ci_width=ci_width,
        mode="minimize" if regime.rising else "capacity",
        parameter="d_qk" if regime.rising else None,
        limits=(1, 4032),
        **extra,
    )
    plan = SearchPlan(
        axis_of(protocol),
        bracket=(10.0, 1600.0),
        ci_width=ci_width,
        seeds=preset.seeds,
        first_points=preset.first_points,
        first_seeds=preset.first_seeds,
        batch=preset.batch,
        budget=regime.budget,
    )
    session = SimulatedSession(regime, math.exp(rng.uniform(math.log(LOW), math.log(HIGH))), rng, protocol)
    run._search(cast("Any", session), plan)
    leader = leading_rate(session.trials, protocol)
    n_trials = sum(trial.learning_rate == leader for trial in session.trials)
    truth = session.true_capacity(leader)
    truth = least_passing(truth, protocol) if regime.rising else truth
    return Answer(summarise(session.trials, protocol).capacity, truth, n_trials)


@dataclass(frozen=True)
class Report:
    """Bias, coverage and cost over many searches."""

    bias: float
    """Mean of ln(estimate / truth)."""
    bias_error: float
    """Its standard error."""
    coverage: float
    n_trials: float
    half_width: float
    """Median relative half-width of the closed intervals."""


def report(regime: Regime, n_searches: int, seed: int, ci_width: float = 0.05) -> Report:
    """The report on many searches in one regime."""
    rng = np.random.default_rng(seed)
    answers = [simulate(regime, rng, ci_width) for _ in range(n_searches)]
    errors = np.array([a.log_error for a in answers if a.capacity.status == "estimated"])
    closed = [a.capacity for a in answers if a.capacity.ci_low and a.capacity.ci_high]
    return Report(
        float(errors.mean()),
        float(errors.std() / math.sqrt(len(errors))),
        float(np.mean([a.is_covered for a in answers])),
        float(np.mean([a.n_trials for a in answers])),
        float(np.median([math.sqrt(c.ci_high / c.ci_low) - 1 for c in closed if c.ci_high and c.ci_low])),
    )


EQUAL, UNEQUAL, FIVE = (0.0, 0.0, 0.0), (-0.5, 0.0, -0.15), (-1.0, -0.3, 0.0, -0.1, -0.4)
REGIMES = [
    Regime(budget=8),
    Regime(budget=8, offsets=EQUAL),
    Regime(budget=8, offsets=EQUAL, scale=0.3),
    Regime(budget=8, offsets=UNEQUAL),
    Regime(budget=16, offsets=EQUAL),
    Regime(budget=16, offsets=FIVE),
    Regime(scale=0.03),
    Regime(),
    Regime(scale=0.3),
    Regime(offsets=EQUAL, scale=0.03),
    Regime(offsets=EQUAL),
    Regime(offsets=EQUAL, scale=0.3),
    Regime(offsets=EQUAL, shared=0.3),
    Regime(offsets=UNEQUAL),
    Regime(lapse=0.1),
    Regime(lapse=0.25, scale=0.03),
    Regime(lapse=0.25),
    Regime(lapse=0.25, offsets=EQUAL),
    Regime(metric="steep"),
    Regime(metric="flat"),
    Regime(metric="jump"),
    Regime(metric="unrelated"),
    Regime(rising=True),
    Regime(preset="standard", budget=144),
    Regime(preset="standard", budget=144, scale=0.05),
    Regime(preset="standard", budget=144, lapse=0.25),
    Regime(preset="standard", budget=144, metric="unrelated"),
]
FRESH = [
    Regime(budget=12, scale=0.2),
    Regime(budget=12, offsets=(0.0, 0.0), scale=0.2),
    Regime(budget=12, offsets=(-0.3, 0.0, 0.0), scale=0.08),
    Regime(budget=24, offsets=(-0.2, 0.0, -0.2, 0.0)),
    Regime(budget=24, lapse=0.15, scale=0.2),
    Regime(budget=24, lapse=0.25, scale=0.06, offsets=EQUAL),
    Regime(scale=0.01),
    Regime(preset="standard", budget=144, scale=0.01),
]
"""Regimes that had no part in choosing the constants of search and estimator."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--only", default="", help="only regimes whose name contains this")
    options = parser.parse_args()
    print(f"{'regime':<52} {'bias':>7} {'(±)':>5} {'coverage':>8} {'trials':>7} {'width':>6}")
    for regime in [*REGIMES, *FRESH]:
        if options.only in str(regime):
            got = report(regime, options.searches, seed=1)
            print(
                f"{regime!s:<52} {got.bias:>+7.1%} {got.bias_error:>5.1%} {got.coverage:>8.1%}"
                f" {got.n_trials:>7.1f} {got.half_width:>6.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
