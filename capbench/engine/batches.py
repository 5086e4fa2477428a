"""Batches: training steps on some of the facts, drawn from each trial's own generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from capbench.contract.task import Problem
from capbench.engine.trials import Sampling, Setup, TrialSpec


class Batches:
    """The batches of every lane, each drawn from its own trial's generator, epoch after epoch.

    A batch holds only the drawn facts, repeated as drawn. If facts have no slots of their own, or a batch is no smaller
    than the problem, it is the whole problem with a mask that counts the draws.
    """

    def __init__(self, sampling: Sampling, setup: Setup, trials: Sequence[TrialSpec], problem: Problem) -> None:
        self._sampling = sampling
        self._problem = problem
        self._lanes = [
            _Lane(sampling, setup.batch_seed(t), row.flatten().cpu())
            for t, row in zip(trials, problem.mask, strict=True)
        ]

    def problems(self, n_steps: int) -> Iterator[Problem]:
        """The problems of the next steps."""
        drawn = torch.stack([lane.take(n_steps * self._sampling.batch) for lane in self._lanes])
        shape = (len(self._lanes), n_steps, self._sampling.batch)
        index = drawn.view(shape).transpose(0, 1).to(self._problem.mask.device)  # (steps, lanes, batch)
        yield from map(self._picked if self._picks() else self._counted, index)

    def kept(self, lanes: list[int], problem: Problem) -> Batches:
        """The batches of only the given lanes, continued."""
        rest = object.__new__(Batches)
        rest._sampling, rest._problem, rest._lanes = self._sampling, problem, [self._lanes[i] for i in lanes]
        return rest

    def _picks(self) -> bool:
        """Whether every fact has its own slot, and a batch has fewer facts than the problem."""
        mask, slots = self._problem.mask, self._problem.mask.shape[1]
        has_slots = mask.dim() == 2 and self._problem.targets.shape[1] == slots
        return (
            has_slots and self._sampling.batch < slots and all(x.shape[1] in (1, slots) for x in self._problem.inputs)
        )

    def _picked(self, drawn: Tensor) -> Problem:
        """Only the drawn facts, (lanes, batch, …) each; what all facts share stays as it is."""
        lanes, (inputs, targets, mask) = torch.arange(len(drawn), device=drawn.device).unsqueeze(1), self._problem
        picked = tuple(x[lanes, drawn] if x.shape[1] == mask.shape[1] else x for x in inputs)
        # Sampling by weight already accounts for the weight; otherwise the weights of the mask apply.
        weights = mask[lanes, drawn] if self._sampling.n_draws is None else torch.ones_like(drawn, dtype=mask.dtype)
        return Problem(picked, targets[lanes, drawn], weights)

    def _counted(self, drawn: Tensor) -> Problem:
        """The whole problem, its mask counting how often each fact was drawn."""
        mask = self._problem.mask
        counts = torch.zeros_like(mask).flatten(1)
        counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=mask.dtype))
        counts = counts.view_as(mask)
        return self._problem._replace(mask=counts * mask if self._sampling.n_draws is None else counts)


class _Lane:
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
