"""Solvers that write or solve weights: how much each rung of the ladder holds."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from capbench import CannotConstruct, ConstructiveSolver, Problem, Task
from capbench.documents.result import Result
from capbench_plugins.alternating import Alternating
from capbench_plugins.folded_mlp import FoldedMlp
from capbench_plugins.mha import Mha
from capbench_plugins.mlp import Mlp
from capbench_plugins.written_mlp import HandCoded, SolvedReadout, TrainedReadout
from capbench_tasks.rgr import Rgr
from capbench_tasks.triples import Triples

TRIPLES = Triples(n_keys=32, n_queries=32, n_values=16)
FOLDED = FoldedMlp(d_mlp=16)


def metric(solver: ConstructiveSolver, task: Task, architecture: FoldedMlp | Mha, load: int, seed: int = 0) -> float:
    slots = 1 << (load - 1).bit_length()
    problem = task.problem(load, slots, torch.Generator().manual_seed(seed))
    problem = Problem(tuple(x.double() if x.is_floating_point() else x for x in problem.inputs), *problem[1:])
    problem = problem._replace(mask=problem.mask.double())
    if problem.targets.is_floating_point():
        problem = problem._replace(targets=problem.targets.double())
    module = architecture.build(task.signature).double()
    weights = solver.find_weights(task, architecture, module, problem, load, torch.Generator().manual_seed(seed))
    assert weights.keys() == dict(module.named_parameters()).keys()
    outputs = functional_call(module, weights, problem.inputs)
    return float(task.metrics(outputs, problem)[task.criterion.metric])


@pytest.mark.parametrize("seed", range(4))
def test_a_solved_read_out_is_exact_up_to_one_fact_per_hidden_unit(seed: int) -> None:
    assert metric(SolvedReadout(), TRIPLES, FOLDED, 16, seed) == 1.0


def test_a_solved_read_out_fails_far_beyond_that() -> None:
    assert metric(SolvedReadout(), TRIPLES, FOLDED, 128) < 0.6


def test_counted_weights_answer_far_better_than_guessing_and_worse_than_solved_ones() -> None:
    coded = [metric(HandCoded(), TRIPLES, FOLDED, 24, seed) for seed in range(4)]
    solved = [metric(SolvedReadout(), TRIPLES, FOLDED, 24, seed) for seed in range(4)]
    assert sum(coded) / 4 > 5 / 16
    assert sum(coded) < sum(solved)


def test_alternating_newton_steps_hold_several_times_the_edges_of_signatures() -> None:
    task, architecture = Rgr(n_items=64, d_item=16, graph="random"), Mha(n_heads=4, d_qk=8)
    assert [metric(Alternating(), task, architecture, 96, seed) for seed in range(2)] == [1.0, 1.0]


@pytest.mark.parametrize("solver", [SolvedReadout(), HandCoded(), Alternating()])
def test_other_pairs_are_refused(solver: ConstructiveSolver) -> None:
    with pytest.raises(CannotConstruct):
        solver.reach(TRIPLES, Mlp())


def test_a_trained_read_out_leaves_the_written_embeddings_alone() -> None:
    solver = TrainedReadout().with_layout(_layout())
    weights, gradient = torch.ones(1, 18), torch.ones(1, 18)
    solver.update(weights, gradient, solver.init(weights), torch.tensor([[0.1]]), torch.tensor(0), torch.tensor(9))
    assert weights[:, :6].lt(1.0).all()
    assert weights[:, 6:].eq(1.0).all()


def _layout() -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The parameters of a folded MLP as the engine orders them: the read-out comes first."""
    module = FoldedMlp(d_mlp=3).build(Triples(n_keys=2, n_queries=2, n_values=2).signature)
    layout = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    assert layout == (("W", (3, 2)), ("E.0", (2, 3)), ("E.1", (2, 3)))
    return layout


RUN = (
    "run", "--task", "triples", "--arch", "folded_mlp", "--preset", "smoke", "--set", "task.n_keys=16",
    "--set", "task.n_queries=16", "--set", "task.n_values=8", "--set", "arch.d_mlp=8", "--json",
)  # fmt: skip


@pytest.mark.slow
def test_the_hybrid_trains_compiled_and_holds_more_than_counted_weights(capbench) -> None:
    hybrid = capbench(*RUN, "--solver", "trained_readout", "--steps", "600", "--lr", "0.1", "--compile", "on")
    coded = capbench(*RUN, "--solver", "hand_coded")
    assert (hybrid.code, coded.code) == (0, 0), hybrid.err + coded.err
    trained, counted = (Result.model_validate_json(done.out) for done in (hybrid, coded))
    assert all(trial.compiled for trial in trained.trials)
    assert trained.capacity.estimate > 2 * counted.capacity.estimate
    assert counted.above_floor is not None
