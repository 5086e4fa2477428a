"""Batches: training steps on some of the facts, drawn from each trial's own generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from capbench.contract.task import Problem, Task
from capbench.engine.torch_private import tree_leaves, tree_map
from capbench.engine.trials import Sampling, Setup, TrialSpec


class LaneBatches:
    """The batches of one trial, drawn from its own generator, epoch after epoch.

    A batch holds only the drawn facts, repeated as drawn. If facts have no slots of their own, or a batch is no smaller
    than the problem, it is the whole problem with a mask that counts the draws.
    """

    def __init__(self, sampling: Sampling, seed: int, problem: Problem) -> None:
        self._sampling = sampling
        self._problem = problem
        self._stream = _Stream(sampling, seed, problem.mask.flatten())
        self._picks = picks(sampling, problem)

    @property
    def is_per_step(self) -> list[bool]:
        """Which tensors of a problem change from step to step: its inputs, its targets and its mask."""
        slots = len(self._problem.mask)
        return [*(self._picks and len(tensor) == slots for tensor in self._problem.inputs), self._picks, True]

    def take(self, n_steps: int) -> Problem:
        """The problems of the next steps: tensors that change have a leading axis of steps."""
        return self._problems(self._stream.take(n_steps * self._sampling.batch).view(n_steps, -1))

    def like(self) -> Problem:
        """The shapes of one step's problem; draws nothing."""
        return self._problems(torch.zeros(1, self._sampling.batch, dtype=torch.int64))

    def _problems(self, drawn: Tensor) -> Problem:
        """The problems that consist of the facts drawn for each step, (steps, batch)."""
        inputs, targets, mask = self._problem
        has_own_draws = self._sampling.n_draws is not None
        if self._picks:
            # Sampling by weight already accounts for the weight; otherwise the weights of the mask apply.
            weights = torch.ones_like(drawn, dtype=mask.dtype) if has_own_draws else mask[drawn]
            picked = tuple(x[drawn] if len(x) == len(mask) else x for x in inputs)
            return Problem(picked, targets[drawn], weights)
        counts = torch.zeros(len(drawn), mask.numel(), dtype=mask.dtype)
        counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=mask.dtype))
        counts = counts.view(len(drawn), *mask.shape)
        return Problem(inputs, targets, counts if has_own_draws else counts * mask)


def picks(sampling: Sampling, problem: Problem) -> bool:
    """Whether every fact has its own slot, and a batch has fewer facts than the problem."""
    mask, slots = problem.mask, len(problem.mask)
    has_slots = mask.dim() == 1 and len(problem.targets) == slots
    return has_slots and sampling.batch < slots and all(len(x) in (1, slots) for x in problem.inputs)


class FreshBatches:
    """The batches of one trial of a task that draws new examples for every step, from the trial's own generator."""

    def __init__(self, task: Task, load: int, seed: int, problem: Problem) -> None:
        self._task, self._load, self._problem = task, load, problem
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def is_per_step(self) -> list[bool]:
        """All tensors of a problem change from step to step."""
        return [True] * len(tree_leaves(self._problem))

    def take(self, n_steps: int) -> Problem:
        """The problems of the next steps, whose tensors have a leading axis of steps."""
        return self._stacked([self._task.fresh(self._load, self._generator) for _ in range(n_steps)])

    def like(self) -> Problem:
        """The shapes of one step's problem; draws nothing from the trial's generator."""
        return self._stacked([self._task.fresh(self._load, torch.Generator())])

    def _stacked(self, problems: list[Problem]) -> Problem:
        """Problems as one, in the types of the problem that is scored."""
        stacked: Problem = tree_map(lambda like, *same: torch.stack(same).to(like.dtype), self._problem, *problems)
        return stacked


def has_batches(setup: Setup) -> bool:
    """Whether steps train on something else than the problem that is scored."""
    return setup.training.sampling is not None or setup.task.plugin.is_fresh


def lane_batches(setup: Setup, trial: TrialSpec, problem: Problem) -> LaneBatches | FreshBatches:
    """The batches of one trial."""
    seed, sampling = setup.batch_seed(trial), setup.training.sampling
    if sampling is None:
        return FreshBatches(setup.task.plugin, trial.load, seed, problem)
    return LaneBatches(sampling, seed, problem)


class Batches:
    """The batches of every lane of a stack, step by step."""

    def __init__(self, setup: Setup, trials: Sequence[TrialSpec], problem: Problem) -> None:
        self._device = problem.mask.device
        host: Problem = tree_map(lambda tensor: tensor.cpu(), problem)
        self._lanes = [
            lane_batches(setup, trial, tree_map(lambda tensor, i=i: tensor[i], host)) for i, trial in enumerate(trials)
        ]

    def problems(self, n_steps: int) -> Iterator[Problem]:
        """The problems of the next steps."""
        taken, moves = [tree_leaves(lane.take(n_steps)) for lane in self._lanes], self._lanes[0].is_per_step
        stacked = [self._moved(torch.stack(same, int(each))) for *same, each in zip(*taken, moves, strict=True)]
        for step in range(n_steps):
            # A tensor of its own on a CPU: products there may round by where their memory begins.
            own = [tensor[step].clone() if each else tensor for tensor, each in zip(stacked, moves, strict=True)]
            *inputs, targets, mask = own
            yield Problem(tuple(inputs), targets, mask)

    def _moved(self, tensor: Tensor) -> Tensor:
        """The tensor on the device of the stack; from pinned memory, so that a copy to CUDA is not waited for."""
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)

    def kept(self, lanes: list[int]) -> Batches:
        """The batches of only the given lanes, continued."""
        rest = object.__new__(Batches)
        rest._device, rest._lanes = self._device, [self._lanes[i] for i in lanes]
        return rest


class _Stream:
    """One trial's endless stream of facts: shuffled epochs of what was drawn."""

    def __init__(self, sampling: Sampling, seed: int, weights: Tensor) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        if sampling.n_draws is None:
            self._facts = weights.nonzero().flatten()
        else:
            self._facts = torch.multinomial(
                weights.double(), sampling.n_draws, replacement=True, generator=self._generator
            )
        self._queue = self._facts[:0]

    def take(self, n_facts: int) -> Tensor:
        """The next facts of the stream."""
        parts = [self._queue]
        while sum(len(part) for part in parts) < n_facts:
            parts.append(self._facts[torch.randperm(len(self._facts), generator=self._generator)])
        stream = torch.cat(parts)
        self._queue = stream[n_facts:]
        return stream[:n_facts]
