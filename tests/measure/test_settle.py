"""A settled run chooses learning rate and steps on seeds of its own, and says how far from settled it is."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch

from capbench.documents.result import Protocol, RateWindow, Result, Trial, TrialStatus
from capbench.documents.strict_json import read_result
from capbench.documents.text import as_json_text
from capbench.errors import BadSetting
from capbench.executors.backends import ThisProcess
from capbench.measure import run
from capbench.measure.estimate.search import SearchPlan
from capbench.measure.estimate.summary import axis_of, leading_rate, rate_window
from capbench.measure.options import RunOptions
from capbench.measure.request import Request, build_request
from capbench.measure.run import execute
from capbench.measure.session import SELECTION_SEED, NullListener, Session
from capbench.measure.settle import ROUGH_WIDTH, SETTLE_VERSION, Settled, capacity_by_steps, is_settled, settle
from capbench.measure.shapes import ChosenShape
from capbench.registry.registry import load_registry
from capbench.report.result_plot import success_chart
from capbench.report.result_text import brief_capacity, result_text
from capbench.store.store import Store
from capbench.studies.verify.replay import check_selection_keys, check_summaries, replay
from capbench.studies.verify.selection import check_selection

REGISTRY = load_registry()


def request(**options: object) -> Request:
    fixed = {"task": "rgr", "arch": "bilinear", "preset": "smoke", "settle": 0.05, "steps": 25, "rates": (0.1,)}
    return build_request(RunOptions(**{**fixed, **options}), REGISTRY)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settled")


@pytest.fixture(scope="module")
def settled(home: Path) -> Result:
    """A run that starts with far too few steps, and at one learning rate that is not the best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return execute(request(), REGISTRY, Store(home), NullListener())


def test_steps_double_until_the_capacity_is_settled_or_the_limit_is_reached(settled: Result) -> None:
    steps = [each.steps for each in settled.capacity.by_steps]
    assert steps == [25 * 2**k for k in range(len(steps))]
    assert len(steps) > 2
    estimates = [each.estimate for each in settled.capacity.by_steps]
    rises = [after / before - 1 for before, after in itertools.pairwise(estimates)]
    assert all(rise >= 0.05 for rise in rises[:-1])
    assert settled.capacity.settled == (rises[-1] < 0.05)
    assert settled.capacity.drift == pytest.approx(rises[-1])
    assert settled.protocol.steps == (steps[-2] if settled.capacity.settled else steps[-1])


def test_the_best_learning_rate_is_not_at_an_end_of_those_tried(settled: Result) -> None:
    assert settled.selection is not None
    rates = settled.selection.rates
    assert rates is not None
    assert min(rates.tried) < rates.best < max(rates.tried)
    assert all(high / low == pytest.approx(2) for low, high in zip(rates.tried, rates.tried[1:], strict=False))
    assert len(settled.protocol.learning_rates) == 1


def test_no_seed_has_a_part_in_choosing_and_in_measuring(settled: Result) -> None:
    assert settled.selection is not None
    assert all(trial.seed >= SELECTION_SEED for trial in settled.selection.trials)
    assert all(trial.seed < SELECTION_SEED for trial in settled.trials)
    assert {trial.learning_rate for trial in settled.trials} == set(settled.protocol.learning_rates)


def test_a_settled_document_reads_back_and_its_summaries_follow_from_its_trials(settled: Result, home: Path) -> None:
    path = home / "settled.json"
    path.write_text(as_json_text(settled), encoding="utf-8")
    read = read_result(path)
    assert read == settled
    assert check_summaries(read) == []


def test_the_command_of_a_settled_document_measures_the_same_again(settled: Result, tmp_path: Path) -> None:
    assert "--settle" not in settled.command
    again = request(settle=None, steps=settled.protocol.steps, rates=settled.protocol.learning_rates)
    assert replay(settled, again, REGISTRY, tmp_path) == []


def test_text_plot_and_tables_say_whether_it_is_settled(settled: Result) -> None:
    drift = f"{settled.capacity.drift:+.1%}"
    assert f"the last doubling of the steps changed it by {drift}" in result_text(settled, "edge")
    assert f"settled (drift {drift})" in json.dumps(success_chart(settled, "edge").to_dict(), ensure_ascii=False)
    unsettled = settled.model_copy(update={"capacity": settled.capacity.model_copy(update={"settled": False})})
    assert brief_capacity(unsettled).endswith("(not settled)")


def test_a_rate_or_steps_that_the_selection_does_not_give_is_found(settled: Result) -> None:
    for name, value in (("steps", 2 * settled.protocol.steps), ("learning_rates", (9.0,))):
        protocol = settled.protocol.model_copy(update={name: value})
        trials = tuple(t.model_copy(update={"learning_rate": protocol.learning_rates[0]}) for t in settled.trials)
        forged = settled.model_copy(update={"protocol": protocol, "trials": trials})
        assert any(line.startswith(f"protocol.{name}") for line in check_summaries(forged))


@dataclass
class RatedSession:
    """Stands in for a session: every rate has a capacity of its own."""

    capacities: dict[float, int]
    protocol: Protocol
    first_seed: int = SELECTION_SEED
    trials: list[Trial] = field(default_factory=list)

    def measure(self, points: Sequence[tuple[int, int]], rates: Sequence[float | None]) -> None:
        """Trains by comparing."""
        for (at, seed), rate in itertools.product(points, rates):
            assert rate is not None
            capacity = self.capacities.get(round(rate, 6), 0)
            held = at <= capacity
            self.trials.append(
                Trial(
                    key="",
                    load=at,
                    seed=self.first_seed + seed,
                    learning_rate=rate,
                    status=TrialStatus.HELD if held else TrialStatus.NOT_HELD,
                    steps=1,
                    metrics={self.protocol.criterion.metric: 1.0 if held else 0.9 * capacity / at},
                )
            )


def search_rates(capacities: dict[float, int]) -> tuple[RateWindow, Counter[float | None]]:
    """The rates that a search from 0.1 finds, and the number of trials at each."""
    session = RatedSession(capacities, request().protocol)
    plan = SearchPlan(axis_of(session.protocol), (4.0, 64.0), first_points=8, first_seeds=2, budget=48)
    run._search(cast("Session", session), plan, extends=True)
    window = rate_window(session.trials, leading_rate(session.trials, session.protocol), session.protocol)
    assert window is not None
    return window, Counter(trial.learning_rate for trial in session.trials)


def test_rates_are_added_until_the_best_is_not_at_an_end_and_a_worse_one_gets_few_trials() -> None:
    window, n_trials = search_rates({0.1: 20, 0.2: 30, 0.4: 40, 0.8: 12})
    assert (window.best, window.tried) == (0.4, (0.1, 0.2, 0.4, 0.8))
    assert window.working == (0.1, 0.2, 0.4)
    assert window.pruned == (0.1, 0.2, 0.8)
    assert n_trials[0.8] == run.PROBES < n_trials[0.4]


class DrawnSession(Session):
    """A session whose trials hold up to a load that depends on the steps."""

    def __post_init__(self) -> None:
        """Needs no executor."""

    def draw(self, capacity: int) -> None:
        """One trial at each load around the capacity, at its best rate."""
        best = self.protocol.learning_rates[len(self.protocol.learning_rates) // 2]
        for at in range(capacity - 8, capacity + 8):
            status = TrialStatus.HELD if at <= capacity else TrialStatus.NOT_HELD
            metrics = {self.protocol.criterion.metric: 1.0 if at <= capacity else 0.5}
            trial = Trial(key="", load=at, seed=0, learning_rate=best, status=status, steps=1, metrics=metrics)
            self.trials.append(trial)


def settle_drawn(capacities: dict[int, int], shape: ChosenShape | None = None) -> tuple[Settled, list[str]]:
    """Settles a capacity that depends on the steps in a known way; also returns the searches that were made."""
    searches: list[str] = []

    def open_session(request: Request) -> Session:
        return DrawnSession(request, REGISTRY, None, NullListener(), None)  # type: ignore[arg-type]

    def search(session: Session, around: tuple[float, float] | None, width: float) -> None:
        steps, rates = session.protocol.steps, session.protocol.learning_rates
        place = f" near {10 * round(sum(around) / 25)} at {rates[0]:g} to {rates[-1]:g}" if around else ""
        searches.append(f"{'rough' if width == ROUGH_WIDTH else 'precise'} {steps}{place}")
        if not session.trials:
            assert isinstance(session, DrawnSession)
            session.draw(capacities[steps])

    return settle(request(), shape, open_session, search), searches


def test_only_the_searches_around_the_last_doubling_are_precise() -> None:
    settled, searches = settle_drawn({25: 40, 50: 60, 100: 61})
    rough = ["rough 25", "rough 50 near 40 at 0.05 to 0.2", "rough 100 near 60 at 0.05 to 0.2"]
    assert searches == [*rough, "precise 50", "precise 100"]
    assert settled.request.protocol.steps == 50
    assert settled.selection.version == SETTLE_VERSION


def test_a_capacity_that_rises_to_the_last_doubling_is_measured_there_and_not_settled() -> None:
    settled, searches = settle_drawn({25: 20, 50: 40, 100: 70, 200: 110, 400: 180})
    assert [line.split()[0] for line in searches] == ["rough"] * 5
    assert settled.request.protocol.steps == 400
    assert not is_settled(capacity_by_steps(settled.selection, settled.request.protocol), 0.05)


def test_settling_starts_at_the_rate_and_near_the_capacity_of_the_chosen_shape() -> None:
    _, searches = settle_drawn({25: 60, 50: 60}, ChosenShape(rate=0.8, estimate=50.0))
    assert searches[0] == "rough 25 near 50 at 0.4 to 1.6"


@pytest.mark.parametrize(
    ("field", "value"), [("settled", None), ("drift", 0.001), ("by_steps", ())], ids=["settled", "drift", "by_steps"]
)
def test_a_changed_field_of_settling_is_found(settled: Result, field: str, value: object) -> None:
    value = not settled.capacity.settled if field == "settled" else value
    forged = settled.model_copy(update={"capacity": settled.capacity.model_copy(update={field: value})})
    assert any(line.startswith(f"capacity.{field}") for line in check_summaries(forged))


def test_a_changed_trial_of_the_selection_is_found(settled: Result, tmp_path: Path) -> None:
    again = request(settle=None, steps=settled.protocol.steps, rates=settled.protocol.learning_rates)
    backend = ThisProcess(torch.device("cpu"))
    session = Session(again, REGISTRY, Store(tmp_path), NullListener(), backend)
    assert check_selection_keys(settled, session) == []
    assert settled.selection is not None
    first, *rest = settled.selection.trials
    for change in (
        {"load": first.load + 1},
        {"seed": first.seed + 1},
        {"limit": 2 * (first.limit or 1)},
        {"limit": None},
    ):
        trials = (first.model_copy(update=change), *rest)
        forged = settled.model_copy(update={"selection": settled.selection.model_copy(update={"trials": trials})})
        assert len(check_selection_keys(forged, session)) == 1, change


def without_first_seed(trials: list[Trial]) -> list[Trial]:
    """Of a load, rate and number of steps that has a second seed."""

    def place(trial: Trial) -> tuple[int, float | None, int | None]:
        return trial.at, trial.learning_rate, trial.limit

    chosen = place(next(t for t in trials if t.seed > SELECTION_SEED))
    return [t for t in trials if place(t) != chosen or t.seed > SELECTION_SEED]


def without_last_doubling(trials: list[Trial]) -> list[Trial]:
    return [t for t in trials if t.limit != max(t.limit or 0 for t in trials)]


def without_a_doubling_between(trials: list[Trial]) -> list[Trial]:
    limits = sorted({t.limit or 0 for t in trials})
    return [t for t in trials if t.limit != limits[1]]


@pytest.mark.parametrize("pick", [without_first_seed, without_last_doubling, without_a_doubling_between])
def test_trials_cannot_be_picked_out_of_a_selection_afterwards(settled: Result, pick) -> None:
    assert settled.selection is not None
    trials = tuple(pick(list(settled.selection.trials)))
    assert len(trials) < len(settled.selection.trials)
    selection = settled.selection.model_copy(update={"trials": trials})
    (finding,) = check_selection(selection, settled)
    assert finding.startswith("selection.trials: ")
    forged = settled.model_copy(update={"selection": selection})
    assert finding in check_summaries(forged)
    assert list(check_selection(settled.selection, settled)) == []


def test_a_selection_on_other_seeds_or_of_another_version_is_found(settled: Result) -> None:
    assert settled.selection is not None
    for change in ({"first_seed": 0}, {"version": SETTLE_VERSION + 1}):
        assert list(check_selection(settled.selection.model_copy(update=change), settled))


def test_the_first_seed_of_the_command_shifts_the_seeds_of_the_selection(settled: Result) -> None:
    selection, shift = settled.selection, 7
    assert selection is not None
    elsewhere = settled.model_copy(update={"command": f"{settled.command} --first-seed {shift}"})
    trials = tuple(trial.model_copy(update={"seed": trial.seed + shift}) for trial in selection.trials)
    shifted = selection.model_copy(update={"first_seed": SELECTION_SEED + shift, "trials": trials})
    assert list(check_selection(shifted, elsewhere)) == []
    assert list(check_selection(shifted, settled))
    assert list(check_selection(selection, elsewhere))
    nonsense = settled.model_copy(update={"command": "capbench run --no-such-option"})
    (finding,) = check_selection(selection, nonsense)
    assert finding.startswith("command: ")


def test_the_same_settled_run_again_trains_nothing(settled: Result, home: Path) -> None:
    again = execute(request(), REGISTRY, Store(home), NullListener())
    assert again.timing.trials_trained == 0
    assert json.loads(as_json_text(again))["capacity"] == json.loads(as_json_text(settled))["capacity"]


def test_a_doubling_that_raises_the_capacity_by_the_share_is_not_settled(settled: Result) -> None:
    assert settled.selection is not None
    rows = capacity_by_steps(settled.selection, settled.protocol)
    raised = [rows[0].model_copy(update={"estimate": estimate}) for estimate in (100.0, 105.0)]
    assert not is_settled(raised, 0.05)
    assert is_settled(raised, 0.06)
    assert not is_settled(raised[:1], 0.05)


@pytest.mark.parametrize("options", [{"at": 5}, {"solver": "construct", "arch": "mha", "rates": ()}], ids=str)
def test_settling_is_for_capacities_that_are_trained(options: dict[str, object]) -> None:
    with pytest.raises(BadSetting, match="--settle is for a capacity that is searched for by training, got --"):
        request(**options)
