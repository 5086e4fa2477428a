"""Sliding-window attention: softmax attention whose cache of keys and values has a fixed size."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.heads import HeadMixer, SoftmaxHeads, masked_softmax


class SlidingWindow(HeadMixer):
    """Attention to the last few positions (Beltagy et al. 2020, arXiv 2004.05150); a long window sees all of them."""

    name: ClassVar[str] = "sliding_window"
    family: ClassVar[str] = "attention"

    window: int = Field(8, ge=2, le=4096, description="positions that a position sees, itself included")

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return WindowHeads(d_model, self.n_heads, self.d_qk, self.d_vo, self.window)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of the window in all layers."""
        return super().state_size(signature, min(self.window, length))


class WindowHeads(SoftmaxHeads):
    """Σ_h softmax over the last w positions r <= s of (q_s k_rᵀ) v_r W_O^h."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int, window: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.window = window

    def weights(self, scores: Tensor, is_later: Tensor) -> Tensor:
        """Softmax over the positions of the window; the queries are the last positions."""
        n_queries, n_keys = scores.shape[-2:]
        places = torch.arange(n_keys, device=scores.device)
        is_earlier = places <= places[n_keys - n_queries :].unsqueeze(1) - self.window  # (queries, keys)
        return masked_softmax(scores, is_later | is_earlier)

    def mix_last(self, *parts: Tensor) -> Tensor:
        """Attention from the last position, to its window only."""
        q, k, v = parts
        return super().mix_last(q, k[:, -self.window :], v[:, -self.window :])


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Sliding-window attention."""
    return [SlidingWindow]
