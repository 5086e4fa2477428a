"""Evaluations: the metrics of a group at a step, which trials end there, and their records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from capbench.contract.architecture import Architecture
from capbench.contract.signatures import Lookup
from capbench.contract.task import Problem, Task
from capbench.documents.result import FACTS_HELD, Trial, TrialStatus
from capbench.engine.devices import counting_dtype
from capbench.engine.stack import Named, Stack
from capbench.engine.torch_private import tree_map
from capbench.engine.trials import Setup, Training, TrialSpec

CHECK_EVERY = 25
"""Steps between two evaluations: the only moments at which the host asks the device for numbers."""

OnTrials = Callable[[Sequence[Trial]], None]
"""Receives the trials that ended at one evaluation."""
OnProgress = Callable[[int, int], None]
"""Receives the step and the number of trials that have not ended, after every evaluation."""
OnWeights = Callable[[Trial, dict[str, Tensor]], None]
"""Receives a trial that has ended with its trained weights by parameter name."""
PATIENCE = 0.4
"""Share of all steps that a lane may go without a better metric before it counts as a plateau."""
BETTER_BY = 0.002
"""What counts as a better metric, as a share of the criterion's threshold."""
NEARLY = 0.02
"""A lane within this share of the criterion's threshold is never stopped as a plateau."""


@dataclass
class Lane:
    """The trial in a lane of the stack, and how its metric has moved."""

    trial: TrialSpec
    data: dict[str, float]
    alive: bool = True
    best: float = -math.inf
    best_step: int = 0


@dataclass
class Evaluation:
    """A group at a step: its lanes, its weights, and the metrics of each lane once they are read."""

    step: int
    lanes: Sequence[Lane]
    stack: Stack
    names: tuple[str, ...]
    read: Callable[[], Tensor]
    """Waits for the numbers: (metrics and whether the weights are finite, lanes)."""


class PendingEvaluations:
    """Evaluations whose numbers are read: at once on a CPU, one evaluation late on CUDA, so that it never waits.

    Steps that ended lanes take meanwhile are discarded: the trial's record is that of the evaluation. Its weights are
    copied only where somebody reads them.
    """

    def __init__(self, is_late: bool, keeps_weights: bool) -> None:
        self._is_late = is_late
        self._keeps_weights = keeps_weights
        self._waiting: deque[Evaluation] = deque()

    def due(self, evaluation: Evaluation, is_last: bool) -> list[Evaluation]:
        """Adds an evaluation; returns those to be read now."""
        self._waiting.append(evaluation)
        kept = 1 if self._is_late and not is_last else 0
        return [self._waiting.popleft() for _ in range(len(self._waiting) - kept)]

    def take(self, step: int, lanes: Sequence[Lane], stack: Stack, scores: dict[str, Tensor]) -> Evaluation:
        """An evaluation of the present state; starts copying its numbers to the host."""
        finite = torch.isfinite(stack.weights).all(dim=1)
        counted = counting_dtype(finite.device)
        numbers = torch.stack([*(score.to(counted) for score in scores.values()), finite.to(counted)])
        if self._is_late and self._keeps_weights:
            stack = stack.snapshot()
        return Evaluation(step, tuple(lanes), stack, tuple(scores), _start_copy(numbers))


def _start_copy(numbers: Tensor) -> Callable[[], Tensor]:
    """Starts copying a tensor to pinned host memory; the returned function waits until it has arrived."""
    if numbers.device.type != "cuda":
        return lambda: numbers
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(numbers.device))  # the default is a stream of the current device

    def read() -> Tensor:
        arrived.synchronize()
        return host

    return read


def stopping_status(training: Training, value: float, step: int, lane: Lane) -> TrialStatus | None:
    """How a lane ends now, or None if it goes on. Updates its best metric."""
    if not math.isfinite(value):
        return TrialStatus.DIVERGED
    criterion = training.criterion
    sign = 1 if criterion.at_least else -1
    score, goal = sign * value, sign * criterion.threshold
    is_last = step >= training.steps
    if not (training.stops_early or is_last):
        return None
    if criterion.is_met(value):
        return TrialStatus.HELD
    if score > lane.best + BETTER_BY * abs(goal):
        lane.best, lane.best_step = score, step
    if is_last:
        return TrialStatus.NOT_HELD
    is_near = score >= goal - NEARLY * abs(goal)
    is_stuck = step - lane.best_step >= PATIENCE * training.steps
    return TrialStatus.PLATEAU if is_stuck and not is_near else None


def finished_trial(
    setup: Setup,
    trial: TrialSpec,
    status: TrialStatus,
    steps: int,
    metrics: dict[str, float],
    data: dict[str, float],
    compiled: bool = False,
) -> Trial:
    """The record of a trial that has ended, with the facts it holds where its task can tell."""
    held = setup.task.plugin.facts_held(metrics, trial.load)
    if held is not None:
        metrics = {**metrics, FACTS_HELD: held}
    return Trial(
        key=setup.key(trial),
        load=trial.load,
        seed=trial.seed,
        learning_rate=trial.learning_rate,
        status=status,
        steps=steps,
        metrics=metrics,
        data=data,
        compiled=compiled,
    )


def analyse_lane(setup: Setup, stack: Stack, lane: int) -> dict[str, float]:
    """The analysis of one lane's model."""
    module, weights, fixed, problem = lane_model(stack, lane)
    return analyse(setup, module, {**weights, **fixed}, problem)


def lane_model(stack: Stack, lane: int) -> tuple[nn.Module, Named, Named, Problem]:
    """The model of one lane: its structure, its trained tensors, the others, and its problem."""
    one = stack.kept(torch.tensor([lane], device=stack.weights.device))
    weights, fixed, problem = tree_map(
        lambda tensor: tensor[0], (one.layout.split(one.weights), one.fixed, one.problem)
    )
    return stack.module, weights, fixed, problem


@torch.no_grad()
def analyse(setup: Setup, module: nn.Module, tensors: Named, problem: Problem) -> dict[str, float]:
    """What task and architecture report of a model with these parameters and buffers, computed on the CPU."""
    tensors, problem = tree_map(lambda tensor: tensor.cpu(), (tensors, problem))
    task = setup.task.plugin
    outputs: Tensor = functional_call(module, tensors, _analysed_inputs(task, problem))
    inside = _ArchitectureAnalysis(setup.architecture.plugin, module)
    named = {f"module.{name}": tensor for name, tensor in tensors.items()}
    return {**task.analyse(outputs, problem), **functional_call(inside, named, (problem,))}


def _analysed_inputs(task: Task, problem: Problem) -> tuple[Tensor, ...]:
    """All possible inputs on a lookup task, else those of the problem."""
    signature = task.signature
    if isinstance(signature, Lookup) and signature.n_combinations > 0:
        return (signature.grid(),)
    return problem.inputs


class _ArchitectureAnalysis(nn.Module):
    """An architecture's analysis as a module, so that `functional_call` can replace the weights."""

    def __init__(self, architecture: Architecture, module: nn.Module) -> None:
        super().__init__()
        self._architecture = architecture
        self.module = module

    def forward(self, problem: Problem) -> dict[str, float]:
        """What the architecture reports of the module."""
        return self._architecture.analyse(self.module, problem)
