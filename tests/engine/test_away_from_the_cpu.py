"""Whole steps on `meta`, a device that is not the CPU: no tensor of the host, no read, no branch on data, no more work.

`python -m tests.engine.test_away_from_the_cpu` writes the table of operations anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capbench.contract.solver import GradientSolver
from capbench.engine.batches import Batches, has_batches
from capbench.engine.counting import OperationCount
from capbench.engine.evaluation import Lane, PendingEvaluations
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.train import MetricTally
from capbench.engine.trials import Sampling, Setup, TrialGroup, TrialSpec
from capbench.registry.settings import configure
from tests.engine.test_every_pair import COMPILED_PAIRS, PAIRS, REGISTRY, make_pair

SOLVERS = sorted(name for name, each in REGISTRY.solvers.items() if issubclass(each.cls, GradientSolver))
META = torch.device("meta")
TABLE = Path(__file__).with_name("operations.json")
"""Operations of a step and of an evaluation that are not views, of every pair, and of a step with every solver."""
REWRITE = "`python -m tests.engine.test_away_from_the_cpu` writes the table anew"
SAMPLINGS = {
    "some facts": Sampling(4),
    "facts drawn with repetition": Sampling(4, n_draws=20),
    "scored batches": Sampling(64, scored_batches=2),
}
Sabotage = Callable[[Tensor], Tensor]
OWN_PAIR = {"trained_readout": ("bigrams", "folded_mlp")}
"""The pair on which a solver is tried that covers few of them; the others are tried on rgr and mha."""
SABOTAGES: dict[str, Sabotage] = {
    "a tensor of the host": lambda own: (own.unsqueeze(0) + torch.ones(1, *own.shape, dtype=own.dtype)).squeeze(0),
    "numbers of the host": lambda own: own * torch.tensor(2, dtype=own.dtype, device=own.device),
    "an index of the host": lambda own: own.unsqueeze(0)[torch.zeros(1, dtype=torch.int64)].squeeze(0),
    "a read": lambda own: own * own.sum().item(),
    "a branch on data": lambda own: own if own.sum() > 0 else -own,
}


class Away:
    """A stack whose numbers do not exist, and its functions: built without trying them, which reads numbers."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.trials = setup, trials_of(setup)
        self.host, _ = build_stack(TrialGroup(setup, setup.slots(self.trials[0]), self.trials), torch.device("cpu"))
        self.stack, self.batched = self.host.moved(META), Batched.untried(setup, self.host)

    def step(self) -> int:
        """Takes one step; returns its operations."""
        solver, count = self.setup.solver.plugin, OperationCount()
        assert isinstance(solver, GradientSolver)
        state = solver.init(self.stack.weights)
        for asked in self.asked():
            with count:
                number = torch.zeros((), dtype=torch.float64, device=META)
                Step(self.batched, self.setup)(asked, state, [number])
        check(count, state.values())
        return count.operations.total()

    def evaluate(self) -> int:
        """Evaluates once, as late as on a GPU; returns the operations."""
        count, tally = OperationCount(), MetricTally(2)
        lanes = [Lane(trial, {}) for trial in self.trials]
        for asked in self.asked():
            with count:
                scores = self.batched.metrics(self.stack)
                PendingEvaluations(True, keeps_weights=False).take(25, lanes, self.stack, scores)
            tally.add(self.batched.metrics(asked))
        check(count, [*scores.values(), *tally.means().values()])
        return count.operations.total()

    def asked(self) -> Iterator[Stack]:
        """The stack with the problem of a step: its own, or a batch."""
        if not has_batches(self.setup):
            yield self.stack
            return
        batches = Batches(self.setup, self.trials, self.host.problem)
        batches._device = META
        for problem in batches.problems(1):
            yield self.stack.asking(problem)


def check(count: OperationCount, tensors) -> None:
    """Raises where the host waits, or a tensor is elsewhere."""
    if count.waits:
        raise RuntimeError(f"the host waits for {dict(count.waits)}")
    assert {tensor.device.type for tensor in tensors} <= {"meta"}


def trials_of(setup: Setup) -> tuple[TrialSpec, ...]:
    """Two small trials."""
    return tuple(TrialSpec(min(10, setup.task.plugin.max_load), seed, 0.1) for seed in range(2))


def with_solver(name: str) -> Setup:
    return replace(make_pair(*OWN_PAIR.get(name, ("rgr", "mha"))), solver=configure(REGISTRY.solver(name), "smoke", {}))


def check_table(kind: str, name: str, counted: list[int]) -> None:
    """Raises where something takes more operations than the table says."""
    table = json.loads(TABLE.read_text())
    if table["torch"] != plain_version():
        return
    allowed = table[kind].get(name)
    assert allowed is not None, f"{name} is not in {TABLE.name}; {REWRITE}"
    assert all(n <= most for n, most in zip(counted, allowed, strict=True)), (
        f"{name}: {counted} operations of a step and an evaluation, {allowed} before; {REWRITE}, if they are needed"
    )


def plain_version() -> str:
    """The version of torch without its build: other versions take other operations."""
    return re.match(r"[\d.]+", torch.__version__)[0]


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_every_pair_is_trained_and_scored_away_from_the_cpu_with_no_more_operations(
    task: str, architecture: str
) -> None:
    away = Away(make_pair(task, architecture))
    check_table("pairs", f"{task} x {architecture}", [away.step(), away.evaluate()])


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_takes_a_step_away_from_the_cpu_with_no_more_operations(name: str) -> None:
    check_table("solvers", name, [Away(with_solver(name)).step()])


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_every_way_to_draw_batches_is_trained_and_scored_away_from_the_cpu(sampling: Sampling) -> None:
    setup = make_pair("bigrams", "mlp")
    away = Away(replace(setup, training=replace(setup.training, sampling=sampling)))
    assert away.step()
    assert away.evaluate()


def test_the_pairs_include_a_task_with_fresh_batches() -> None:
    assert any(has_batches(make_pair(task, architecture)) for task, architecture in PAIRS)


def sabotage_function(owner: object, name: str, sabotage: Sabotage, patch: pytest.MonkeyPatch) -> None:
    """Sabotages what a function returns, or the first of it."""
    whole = getattr(owner, name)

    def sabotaged(*args: object, **given: object) -> object:
        found = whole(*args, **given)
        if isinstance(found, dict):
            first = next(iter(found))
            return {**found, first: sabotage(found[first])}
        return sabotage(found)

    patch.setattr(owner, name, sabotaged)


@pytest.mark.parametrize(("task", "architecture"), COMPILED_PAIRS)
def test_what_must_not_be_in_a_module_a_loss_or_a_metric_is_found(task: str, architecture: str) -> None:
    away = Away(make_pair(task, architecture))
    module, own = away.stack.module, type(away.setup.task.plugin)
    forwards = [name for name in ("forward", "forward_grid") if hasattr(module, name)]
    for sabotage in SABOTAGES.values():
        for owner, names, call in (
            (module, forwards, away.step),
            (module, forwards, away.evaluate),
            (own, ["loss"], away.step),
            (own, ["metrics"], away.evaluate),
        ):
            with pytest.MonkeyPatch.context() as patch:
                for name in names:
                    sabotage_function(owner, name, sabotage, patch)
                with pytest.raises((RuntimeError, NotImplementedError)):
                    call()
    away.step()
    away.evaluate()


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_what_must_not_be_in_a_solver_is_found(name: str, sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(with_solver(name))
    solver = type(away.setup.solver.plugin)
    update = solver.update
    monkeypatch.setattr(solver, "update", lambda self, w, gradient, *rest: update(self, w, sabotage(gradient), *rest))
    with pytest.raises((RuntimeError, NotImplementedError)):
        away.step()


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("name", ["a tensor of the host", "a read", "a branch on data"])
def test_what_must_not_be_in_a_batch_is_found(name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_pair("bigrams", "mlp")
    away = Away(replace(setup, training=replace(setup.training, sampling=sampling)))
    moved = Batches._moved
    monkeypatch.setattr(Batches, "_moved", lambda self, own: SABOTAGES[name](moved(self, own)))
    with pytest.raises((RuntimeError, NotImplementedError)):
        away.step()


def test_a_batch_that_is_left_on_the_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_pair("bigrams", "mlp")
    away = Away(replace(setup, training=replace(setup.training, sampling=Sampling(4))))
    monkeypatch.setattr(Batches, "_moved", lambda self, own: own)
    with pytest.raises(RuntimeError):
        away.step()


def test_more_operations_than_the_table_says_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(make_pair("rgr", "mha"))
    solver = type(away.setup.solver.plugin)
    update = solver.update
    monkeypatch.setattr(solver, "update", lambda self, w, gradient, *rest: update(self, w, gradient + 0, *rest))
    if json.loads(TABLE.read_text())["torch"] == plain_version():
        with pytest.raises(AssertionError, match="operations of a step"):
            check_table("pairs", "rgr x mha", [away.step(), away.evaluate()])


def write_table() -> None:
    """Writes the table of operations anew."""
    pairs = {f"{task} x {name}": Away(make_pair(task, name)) for task, name in PAIRS}
    counted = {
        "torch": plain_version(),
        "pairs": {name: [away.step(), away.evaluate()] for name, away in pairs.items()},
        "solvers": {name: [Away(with_solver(name)).step()] for name in SOLVERS},
    }
    text = json.dumps(counted, indent=1)
    one_line = re.sub(r"\[[\s\d,]+\]", lambda numbers: str(json.loads(numbers[0])), text)
    TABLE.write_text(one_line + "\n")


if __name__ == "__main__":
    write_table()
