"""Batches: a training step that sees some facts is a step whose mask counts how often each was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from capbench.engine.lanes import Pair, TrialSpec
from capbench.protocols import Sampling


class Batches:
    """The batches of every lane, each drawn from its own trial's generator, epoch after epoch."""

    def __init__(self, sampling: Sampling, pair: Pair, trials: Sequence[TrialSpec], mask: Tensor) -> None:
        self._sampling = sampling
        self._mask = mask
        self._lanes = [
            _Lane(sampling, pair.batch_seed(t), row.flatten().cpu()) for t, row in zip(trials, mask, strict=True)
        ]

    def masks(self, n_steps: int) -> Tensor:
        """The masks of the next steps, (steps, lanes, *mask)."""
        drawn = torch.stack([lane.take(n_steps * self._sampling.batch) for lane in self._lanes])
        shape = (len(self._lanes), n_steps, self._sampling.batch)
        index = drawn.view(shape).transpose(0, 1).to(self._mask.device)  # (steps, lanes, batch)
        counts = torch.zeros(
            n_steps, len(self._lanes), self._mask[0].numel(), dtype=self._mask.dtype, device=self._mask.device
        )
        counts.scatter_add_(2, index, torch.ones_like(index, dtype=self._mask.dtype))
        masks = counts.view(n_steps, *self._mask.shape)
        # Facts drawn by weight carry it in their counts already; facts taken once each do not.
        return masks if self._sampling.n_draws is not None else masks * self._mask

    def kept(self, lanes: list[int], mask: Tensor) -> Batches:
        """The batches of only the given lanes, going on where they were."""
        rest = object.__new__(Batches)
        rest._sampling, rest._mask, rest._lanes = self._sampling, mask, [self._lanes[i] for i in lanes]
        return rest


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
