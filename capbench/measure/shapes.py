"""The choice of a shape under --params: the best of an architecture's candidates, by successive halving.

Each candidate gets a small search with few trials. The better half gets twice as many, until one is left. Their seeds
are not those of the measurement that follows, so that choosing the luckiest does not bias it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from capbench.contract.architecture import Architecture
from capbench.documents.result import ShapeTried, Trial, TrialStatus
from capbench.engine.trials import Setup, TrialSpec
from capbench.errors import RunInterrupted
from capbench.measure.estimate.search import SearchPlan, next_trials
from capbench.measure.estimate.summary import axis_of, leading_rate, observations, summarise
from capbench.measure.request import Request
from capbench.measure.session import SELECTION_SEED, Session, WantedTrials, setup_of
from capbench.measure.theory import bracket
from capbench.registry.settings import Configured

FIRST_TRIALS = 4
"""Trials at the leading rate that each candidate gets before the first halving."""
MOST_BITS = 4
"""Bits per parameter that the first trials of a candidate ask for at most, where a fact is one of several answers."""
WIDEST = 64
"""Ratio of the largest to the smallest load of those trials at most."""
MOST_RATES = 3
"""Learning rates that candidates are tried at; after the first halving, each is only trained at its best."""

COMPILED_STEPS = 500
"""Steps of a trial from which each candidate is compiled: a program takes 1 to 4 s, and so do 500 eager steps of the
first round's groups, one per load (triples, bigrams, rgr and sequences with `mha` and `mlp` at 1k parameters)."""


@dataclass(frozen=True)
class ChosenShape:
    """The best learning rate of the shape that was chosen, and its capacity by its few trials."""

    rate: float
    estimate: float


@dataclass
class ShapeCandidate:
    """One of the shapes compared, and its trials so far."""

    request: Request
    setup: Setup
    trials: list[Trial] = field(default_factory=list)

    @property
    def rates(self) -> tuple[float | None, ...]:
        """The learning rates of its next trials: a spread of the protocol's at first, then the best of them."""
        if self.trials:
            return (leading_rate(self.trials, self.request.protocol),)
        rates = self.request.protocol.learning_rates
        return rates[:: -(-len(rates) // MOST_RATES)] or (None,)

    @property
    def at_best_rate(self) -> list[Trial]:
        """Its trials at its best learning rate."""
        best = leading_rate(self.trials, self.request.protocol)
        return [trial for trial in self.trials if trial.learning_rate == best]

    @property
    def estimate(self) -> float:
        """Its capacity by its few trials; 0 where none of them could be run."""
        if all(trial.status is TrialStatus.FAILED for trial in self.at_best_rate):
            return 0.0
        return summarise(self.trials, self.request.protocol).capacity.estimate

    @property
    def merit(self) -> tuple[float, float]:
        """Its estimate, and how near its trials came to the criterion, which decides between equals."""
        criterion = self.request.protocol.criterion
        sign = 1 if criterion.at_least else -1
        values = [sign * t.metrics[criterion.metric] for t in self.at_best_rate if criterion.metric in t.metrics]
        return self.estimate, fmean(min(value, sign * criterion.threshold) for value in values) if values else -1e30

    def wanted(self, plan: SearchPlan) -> list[WantedTrials]:
        """The trials that its small search asks for next."""
        first = SELECTION_SEED + self.request.options.first_seed
        return [
            WantedTrials(at, self.setup, [TrialSpec(at, first + seed, rate) for rate in self.rates])
            for at, seed in next_trials(observations(self.at_best_rate, self.request.protocol.criterion), plan)
        ]

    def record(self) -> ShapeTried:
        """How the result document states it."""
        params = self.request.architecture.plugin.model_dump(mode="json")
        n_parameters, n_trials = self.request.n_parameters, len(self.trials)
        return ShapeTried(params=params, n_parameters=n_parameters, estimate=self.estimate, trials=n_trials)


def choose_shape(session: Session) -> ChosenShape | None:
    """Gives a session's request the best of its shapes, where it has several and its capacity is asked for."""
    request = session.request
    if not request.chooses_shape:
        return None
    mode = request.options.compile_mode
    if mode == "auto":
        mode = "on" if request.protocol.steps >= COMPILED_STEPS else "off"
    selecting = replace(request, options=request.options.replaced(compile_mode=mode))
    selection = Session(
        selecting, session.registry, session.store, session.listener, session.backend, session.interrupt
    )
    try:
        ranked = _halve(selection, [_candidate(request, shape) for shape in request.shapes])
    except KeyboardInterrupt:
        if session.interrupt.is_repeated:
            session.backend.kill()
        raise RunInterrupted(
            f"interrupted while shapes were compared: {selection.n_trained} newly trained trials are stored; "
            "the same command goes on from there"
        ) from None
    session.request = ranked[0].request
    session.shapes_tried = tuple(candidate.record() for candidate in ranked)
    session.cost.add(selection.cost)
    rate = leading_rate(ranked[0].trials, ranked[0].request.protocol)
    return ChosenShape(rate, ranked[0].estimate) if rate and ranked[0].estimate else None


def _candidate(request: Request, shape: Configured[Architecture]) -> ShapeCandidate:
    """A shape of a request, before its first trial."""
    own = replace(request, architecture=shape, shapes=())
    return ShapeCandidate(own, setup_of(own, 1))


def _halve(session: Session, candidates: Sequence[ShapeCandidate]) -> list[ShapeCandidate]:
    """All candidates, the best first: those that were dropped later before those that were dropped earlier."""
    left, dropped = list(candidates), list[ShapeCandidate]()
    plan = _plan(session, candidates[0].request)
    while len(left) > 1:
        _search(session, left, plan)
        left.sort(key=lambda candidate: candidate.merit, reverse=True)
        n_kept = len(left) // 2
        left, dropped = left[:n_kept], left[n_kept:] + dropped
        plan = replace(plan, budget=2 * plan.budget)
    return left + dropped


def _plan(session: Session, typical: Request) -> SearchPlan:
    """A search with few trials; its first loads are the same for all candidates."""
    protocol = typical.protocol
    return SearchPlan(
        axis=axis_of(protocol),
        bracket=_expected(session, typical),
        ci_width=protocol.ci_width,
        seeds=protocol.seeds,
        first_points=FIRST_TRIALS,
        first_seeds=1,
        batch=FIRST_TRIALS,
        budget=FIRST_TRIALS,
    )


def _expected(session: Session, typical: Request) -> tuple[float, float]:
    """Where theory expects the capacity, where that is a wide range the likely part of it: few trials go far."""
    task = typical.task.plugin
    bounds = [each.cls for each in session.registry.bounds.values()]
    with session.registry.bound_calls():
        low, high = bracket(bounds, task, typical.architecture.plugin)
    signature = task.signature
    n_answers = signature.output_shape(1)[-1] if signature.has_slots else 1
    if n_answers > 1:
        high = max(low, min(high, MOST_BITS * typical.n_parameters / math.log2(n_answers)))
    return max(low, high / WIDEST), high


def _search(session: Session, candidates: Sequence[ShapeCandidate], plan: SearchPlan) -> None:
    """Rounds of trials of all candidates together, until each has as many as the plan has."""
    while True:
        wanted = [(candidate, each) for candidate in candidates for each in candidate.wanted(plan)]
        if not wanted:
            return
        owners = {each.setup.key(spec): candidate for candidate, each in wanted for spec in each.specs}
        n_before = len(session.trials)
        session.obtain([each for _, each in wanted])
        for trial in session.trials[n_before:]:
            owners[trial.key].trials.append(trial)
