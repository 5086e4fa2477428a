"""A settled run chooses learning rate and steps on seeds of its own, and says how far from settled it is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from capbench.documents.result import Result
from capbench.documents.strict_json import read_result
from capbench.documents.text import as_json_text
from capbench.errors import BadSetting
from capbench.executors.backends import ThisProcess
from capbench.measure.options import RunOptions
from capbench.measure.request import Request, build_request
from capbench.measure.run import execute
from capbench.measure.session import SELECTION_SEED, NullListener, Session
from capbench.measure.settle import capacity_by_steps, is_settled
from capbench.registry.registry import load_registry
from capbench.store.store import Store
from capbench.studies.verify.replay import check_selection_keys, check_summaries, replay

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
    with pytest.raises(BadSetting, match="--settle is for a capacity that is searched for by training"):
        request(**options)
