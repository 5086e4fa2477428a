"""Top-k selection by comparisons alone, which batches and compiles on every device."""

from __future__ import annotations

import math

from torch import Tensor


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """1 at the k largest of the last axis, 0 elsewhere; equal scores stay together."""
    left = scores.detach()
    for _ in range(k - 1):
        left = left.masked_fill(left >= left.amax(dim=-1, keepdim=True), -math.inf)
    return (scores.detach() >= left.amax(dim=-1, keepdim=True)).to(scores.dtype)
