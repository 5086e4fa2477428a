"""The self-test of a device: the same trials there and on the CPU, and what a training step asks of the device."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from capbench import __version__
from capbench.contract.solver import GradientSolver
from capbench.documents.result import Record, Trial
from capbench.engine.checks import is_out_of_memory
from capbench.engine.cost import Cost
from capbench.engine.counting import OperationCount, count_launches, cuda_waits
from capbench.engine.devices import counting_dtype, current_device, device_name
from capbench.engine.lane_program import CompileFailed
from capbench.engine.memory import free_memory, lanes_that_fit
from capbench.engine.stack import Batched, Named, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.registry.registry import Registry
from capbench.registry.settings import configure
from capbench.studies.suite import load_suite

COMPARED_STEPS, VERDICT_STEPS, TIMED_STEPS = 50, 200, 10
LARGEST_DIFFERENCE = 0.01
"""Relative difference of a parameter after 50 steps beyond which a device is called wrong: chosen, not measured."""
LANES = (64, 256, 1024, 4096)
SPEED_SECONDS = 20.0
"""Sizes that are expected to take longer than this are not timed."""
CPU = torch.device("cpu")
Ended = dict[str, tuple[Trial, dict[str, Tensor]]]


class Speed(Record):
    """Speed of groups of so many lanes."""

    lanes: int
    lane_steps_per_second: float | None
    """None where the size takes too long, or more memory than there is."""


class SelfTest(Record):
    """What `capbench doctor --device` found."""

    capbench: str
    torch: str
    cuda: str | None
    python: str
    platform: str
    device: str
    device_name: str
    free_bytes: int
    pair: str
    trials: int
    equal_verdicts: int
    largest_difference: float
    compiled_difference: float | None
    """Of compiled steps; None where they ran eagerly."""
    eager_reason: str
    host_waits_per_step: int
    operations_per_step: int
    launches_per_step: int | None
    """Kernels that an eager step launches; None where the device's profiler does not count them."""
    operations_per_evaluation: int
    speeds: tuple[Speed, ...]
    group_size: int
    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check_device(device: torch.device, registry: Registry, lanes: Sequence[int] = ()) -> SelfTest:
    """Trains a small fixed set of trials on a device and on the CPU, counts a step, and times groups."""
    setup = _setup(registry)
    trials, slots = _trials(setup), setup.task.plugin.max_load
    verdicts = TrialGroup(setup, slots, trials)
    compared = replace(verdicts, setup=_for_steps(setup, COMPARED_STEPS))
    with current_device(device):
        n_equal, (difference, _) = _equal_verdicts(verdicts, device), _largest_difference(compared, device)
        compiled, eager_reason = _largest_difference(replace(compared, is_compiled=True), device)
        stepped = _Stepped(verdicts, device)
        step, evaluation = stepped.count()
        launches, speeds = stepped.launches(), tuple(stepped.speeds(lanes or LANES))
    return SelfTest(
        capbench=__version__,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        python=platform.python_version(),
        platform=platform.platform(),
        device=str(device),
        device_name=device_name(device),
        free_bytes=free_memory(device),
        pair=f"{setup.task.plugin.name} x {setup.architecture.plugin.name}",
        trials=len(trials),
        equal_verdicts=n_equal,
        largest_difference=difference,
        compiled_difference=None if eager_reason else compiled,
        eager_reason=eager_reason,
        host_waits_per_step=step.waits.total(),
        operations_per_step=step.operations.total(),
        launches_per_step=launches,
        operations_per_evaluation=evaluation.operations.total(),
        speeds=speeds,
        group_size=lanes_that_fit(setup, slots, device),
        problems=tuple(_problems(len(trials) - n_equal, max(difference, compiled), sorted(step.waits))),
    )


def _problems(n_unequal: int, difference: float, waits: Sequence[str]) -> list[str]:
    found = []
    if n_unequal:
        found.append(f"{n_unequal} trials end otherwise than on the CPU")
    if difference > LARGEST_DIFFERENCE:
        found.append(f"weights differ by {difference:.1e} after {COMPARED_STEPS} steps")
    if waits:
        found.append(f"the host waits within a step, for {', '.join(waits)}")
    return found


def _setup(registry: Registry) -> Setup:
    """The first pair of the suite for tests."""
    suite = load_suite("smoke")
    task = configure(registry.task(suite.tasks[0]), suite.preset, {})
    architecture = configure(registry.architecture(suite.architectures[0]), suite.preset, {})
    solver = configure(registry.solver("adam"), suite.preset, {})
    return Setup(task, architecture, solver, Training(task.plugin.criterion, VERDICT_STEPS))


def _for_steps(setup: Setup, steps: int) -> Setup:
    """The setup for trials that take every one of so many steps."""
    return replace(setup, training=replace(setup.training, steps=steps, stops_early=False))


def _trials(setup: Setup) -> tuple[TrialSpec, ...]:
    """Two trials that are easy and two beyond what the model holds: no verdict hangs on rounding."""
    rate, most = setup.task.plugin.recipe.learning_rates[0], setup.task.plugin.max_load
    return tuple(TrialSpec(load, seed, rate) for load in (2, most) for seed in range(2))


def _train(group: TrialGroup, device: torch.device) -> tuple[Ended, Cost]:
    ended: Ended = {}

    def keep(trial: Trial, weights: dict[str, Tensor]) -> None:
        ended[trial.key] = trial, {name: tensor.cpu() for name, tensor in weights.items()}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileFailed)  # the report says so
        cost = train_group(group, device, lambda _: None, lambda *_: None, keep)
    return ended, cost


def _equal_verdicts(group: TrialGroup, device: torch.device) -> int:
    (here, _), (there, _) = _train(group, CPU), _train(group, device)
    criterion = group.setup.training.criterion
    held = [{key: criterion.is_met(t.metrics[criterion.metric]) for key, (t, _) in e.items()} for e in (here, there)]
    return sum(held[0][key] == held[1][key] for key in held[0])


def _largest_difference(group: TrialGroup, device: torch.device) -> tuple[float, str]:
    """Of any parameter to that of eager steps on the CPU, relative to its size; and why steps were not compiled."""
    here, _ = _train(replace(group, is_compiled=False), CPU)
    there, cost = _train(group, device)
    difference = max(
        float((there[key][1][name] - own).norm() / own.norm())
        for key, (_, weights) in here.items()
        for name, own in weights.items()
    )
    return difference, "; ".join(sorted(cost.eager_reasons))


class _Stepped:
    """Groups that take single steps on a device."""

    def __init__(self, group: TrialGroup, device: torch.device) -> None:
        self._setup, self._device = group.setup, device
        self._stack, _ = build_stack(group, device)
        self._batched = Batched(group.setup, self._stack)
        self._step = Step(self._batched, group.setup)

    def count(self) -> tuple[OperationCount, OperationCount]:
        """What one step asks of the device, and one evaluation."""
        step, evaluation = OperationCount(), OperationCount()
        state, numbers = self._begin(self._stack, 2)
        self._step(self._stack, state, numbers[:1])
        with cuda_waits(self._device) as waits, step:
            self._step(self._stack, state, numbers[1:])
        if len(waits) > step.waits.total():
            step.waits["calls that CUDA reports"] = len(waits) - step.waits.total()
        with evaluation:
            self._batched.metrics(self._stack)
        return step, evaluation

    def launches(self) -> int | None:
        """Kernels that a step launches."""
        state, numbers = self._begin(self._stack, 1)
        return count_launches(lambda: self._step(self._stack, state, numbers), self._device)

    def speeds(self, sizes: Sequence[int]) -> Iterator[Speed]:
        """The speed of groups of each size, by increasing size; of those that take too long or do not fit, none."""
        expected, is_full = 0.0, False
        for n_lanes, following in zip(sizes, [*sizes[1:], 0], strict=True):
            each = None
            if not is_full and expected <= SPEED_SECONDS:
                try:
                    each = self._speed(n_lanes)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    is_full = True
            if each is not None:
                expected = (1 + TIMED_STEPS) * following / each
            yield Speed(lanes=n_lanes, lane_steps_per_second=each)

    def _speed(self, n_lanes: int) -> float:
        """Lane-steps per second of a group of copies."""
        lanes = torch.arange(n_lanes, device=self._device) % len(self._stack.weights)
        stack = self._stack.kept(lanes)
        state, numbers = self._begin(stack, 1 + TIMED_STEPS)
        self._step(stack, state, numbers[:1])
        float(stack.weights[0, 0])  # waits for the device
        started = time.perf_counter()
        self._step(stack, state, numbers[1:])
        float(stack.weights[0, 0])
        return n_lanes * TIMED_STEPS / (time.perf_counter() - started)

    def _begin(self, stack: Stack, n_steps: int) -> tuple[Named, Sequence[Tensor]]:
        """The optimiser's state before the first step, and the numbers of the steps."""
        solver = self._setup.solver.plugin
        assert isinstance(solver, GradientSolver)
        numbers = torch.arange(n_steps, dtype=counting_dtype(self._device), device=self._device)
        return solver.init(stack.weights), numbers.unbind()
