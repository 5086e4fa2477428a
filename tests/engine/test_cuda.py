"""What only a CUDA device shows: run `pytest -m cuda` on a machine that has one. Elsewhere every test is skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import Tensor

from capbench.documents.result import Trial, TrialStatus
from capbench.engine.cost import Cost
from capbench.engine.counting import OperationCount, cuda_waits
from capbench.engine.memory import free_memory, lanes_that_fit
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.train import train_group
from capbench.engine.trials import Sampling, Setup, TrialGroup, TrialSpec
from capbench.executors.local import LocalExecutor
from capbench.registry.settings import configure
from tests.engine.test_every_pair import COMPILED_PAIRS, PAIRS, REGISTRY, compiles, distance, make_pair, small_load

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SOLVERS = sorted(name for name, each in REGISTRY.solvers.items() if hasattr(each.cls, "update"))
LARGEST = 0.01
"""Relative difference of a parameter after 10 steps that rounding may make on most trials: chosen, not measured."""
Ended = dict[TrialSpec, tuple[Trial, dict[str, Tensor]]]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def trials_of(setup: Setup, n_trials: int = 4) -> tuple[TrialSpec, ...]:
    rate = setup.task.plugin.recipe.learning_rates[0]
    return tuple(TrialSpec(small_load(setup, 40), seed, rate) for seed in range(n_trials))


def train(setup: Setup, device: torch.device, is_compiled: bool = False) -> tuple[Ended, Cost]:
    ended: Ended = {}

    def keep(trial: Trial, weights: dict[str, Tensor]) -> None:
        own = {name: tensor.cpu() for name, tensor in weights.items()}
        ended[TrialSpec(trial.load, trial.seed, trial.learning_rate)] = trial, own

    trials = trials_of(setup)
    group = TrialGroup(setup, setup.slots(trials[0]), trials, is_compiled)
    return ended, train_group(group, device, lambda _: None, lambda *_: None, keep)


def assert_alike(ended: Ended, others: Ended) -> None:
    """Of most trials: where a model selects, rounding may decide between two equals."""
    assert ended.keys() == others.keys()
    assert median(distance(weights, others[spec][1]) for spec, (_, weights) in ended.items()) < LARGEST


def open_stack(setup: Setup) -> tuple[Stack, Step, dict[str, Tensor]]:
    """A stack on the device, what takes its steps, and the optimiser's state."""
    trials = trials_of(setup)
    stack, _ = build_stack(TrialGroup(setup, setup.slots(trials[0]), trials), CUDA)
    return stack, Step(Batched(setup, stack), setup), setup.solver.plugin.init(stack.weights)


def number(step: int = 0) -> Tensor:
    return torch.full((), step, dtype=torch.float64, device=CUDA)


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_every_pair_trains_as_on_the_cpu_and_never_waits_in_a_step(task: str, architecture: str) -> None:
    setup = make_pair(task, architecture, steps=10)
    assert_alike(train(setup, CPU)[0], train(setup, CUDA)[0])
    stack, step, state = open_stack(setup)
    step(stack, state, [number()])
    numbers = [number()]
    with cuda_waits(CUDA) as reported, OperationCount() as count:
        step(stack, state, numbers)
    assert not count.waits
    assert not reported


@compiles
@pytest.mark.parametrize(("task", "architecture"), COMPILED_PAIRS)
def test_every_task_and_architecture_is_compiled_and_trains_as_eagerly(task: str, architecture: str) -> None:
    setup = make_pair(task, architecture, steps=10)
    (eager, _), (compiled, cost) = (train(setup, CUDA, is_compiled) for is_compiled in (False, True))
    assert not cost.eager_reasons
    assert all(trial.compiled for trial, _ in compiled.values())
    assert_alike(eager, compiled)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_trains_as_on_the_cpu(name: str) -> None:
    setup = replace(make_pair("rgr", "mha", steps=10), solver=configure(REGISTRY.solver(name), "smoke", {}))
    assert_alike(train(setup, CPU)[0], train(setup, CUDA)[0])


@pytest.mark.parametrize("sampling", [Sampling(4), Sampling(4, n_draws=20), Sampling(64, scored_batches=2)])
def test_every_way_to_draw_batches_trains_as_on_the_cpu(sampling: Sampling) -> None:
    setup = make_pair("bigrams", "mlp", steps=10)
    setup = replace(setup, training=replace(setup.training, sampling=sampling))
    assert_alike(train(setup, CPU)[0], train(setup, CUDA)[0])


@pytest.mark.parametrize("dtype", ["float64", "tf32", "bfloat16"])
def test_other_precisions_train(dtype: str) -> None:
    setup = make_pair("rgr", "mha", steps=25)
    ended, _ = train(replace(setup, training=replace(setup.training, dtype=dtype)), CUDA)
    assert all(trial.status is not TrialStatus.FAILED for trial, _ in ended.values())


@pytest.mark.parametrize(("task", "architecture"), COMPILED_PAIRS)
def test_a_step_is_captured_in_a_graph_whose_replays_are_steps(task: str, architecture: str) -> None:
    setup = make_pair(task, architecture)
    eager, step, state = open_stack(setup)
    replayed, own = eager.snapshot(), {name: tensor.clone() for name, tensor in state.items()}
    warm, warm_state = eager.snapshot(), {name: tensor.clone() for name, tensor in state.items()}
    side, counter = torch.cuda.Stream(), number()
    with torch.cuda.stream(side):
        step(warm, warm_state, [number()] * 3)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(replayed, own, [counter])
        counter.add_(1)
    for _ in range(3):
        graph.replay()
    step(eager, state, [number(i) for i in range(3)])
    torch.cuda.synchronize()
    assert (replayed.weights - eager.weights).norm() < 1e-3 * eager.weights.norm()
    assert (replayed.weights - warm.weights).isfinite().all()


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Of the device's memory, torch gets what it has now and 64 MB."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64e6) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("little_memory")
def test_a_group_that_does_not_fit_is_trained_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_pair("sequences", "transformer", steps=2, preset="standard")
    trials, sizes, ended = trials_of(setup, 1024), [], []
    monkeypatch.setattr("capbench.executors.local.lanes_that_fit", lambda *_: len(trials))
    group = TrialGroup(setup, setup.slots(trials[0]), trials)
    LocalExecutor(CUDA).run([group], ended.extend, lambda _, n_alive: sizes.append(n_alive))
    assert len(ended) == len(trials)
    assert all(trial.status is not TrialStatus.FAILED for trial in ended)
    assert len(sizes) > 1, "64 MB are too little for 1,024 lanes"


def test_groups_are_as_large_as_the_free_memory_allows() -> None:
    setup = make_pair("rgr", "mha")
    assert 0 < free_memory(CUDA) <= torch.cuda.get_device_properties(CUDA).total_memory
    assert lanes_that_fit(setup, setup.slots(trials_of(setup)[0]), CUDA) > 512


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices here")
def test_the_second_of_two_devices_trains_as_the_first_which_stays_the_current_one() -> None:
    setup = make_pair("rgr", "mha", steps=50)
    before = torch.cuda.memory_allocated(0)
    second, _ = train(setup, torch.device("cuda:1"))
    assert torch.cuda.memory_allocated(0) == before
    assert torch.cuda.current_device() == 0
    assert_alike(train(setup, torch.device("cuda:0"))[0], second)


def test_the_verdicts_are_those_of_the_cpu(capbench) -> None:
    done = capbench("doctor", "--device", "cuda", "--lanes", "64", "--json")
    found = json.loads(done.out)
    assert (done.code, found["problems"]) == (0, [])
    assert found["launches_per_step"] > 20


def test_a_run_measures_the_capacity_that_the_cpu_measures(capbench) -> None:
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--json", "--device")
    on_cpu, on_cuda = (json.loads(capbench(*words, device).out)["capacity"] for device in ("cpu", "cuda"))
    assert on_cuda["ci_low"] <= on_cpu["ci_high"]
    assert on_cpu["ci_low"] <= on_cuda["ci_high"]
