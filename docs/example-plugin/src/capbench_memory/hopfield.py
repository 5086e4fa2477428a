"""A modern Hopfield memory that answers lookups."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Lookup, Signature, UnsupportedSignature, hookimpl


class Hopfield(Architecture):
    """A cue selects among learned patterns by softmax (Ramsauer et al. 2020, arXiv 2008.02217)."""

    name: ClassVar[str] = "hopfield_memory"
    presets: ClassVar = {"smoke": {"d_model": 8, "n_patterns": 32}}

    d_model: int = Field(16, ge=1, le=4096, description="width of the cue and of a pattern")
    n_patterns: int = Field(64, ge=1, le=65536, description="number of learned patterns")
    beta: float = Field(1.0, gt=0, description="sharpness of the selection at the start of training")

    def build(self, signature: Signature) -> nn.Module:
        """The module for lookup tasks; others are refused with the reason."""
        if not isinstance(signature, Lookup):
            raise UnsupportedSignature("hopfield_memory answers lookups only, such as triples, bigrams and profiles")
        return HopfieldMemory(signature, self.d_model, self.n_patterns, self.beta)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """The fields that a comparison at equal parameters may change: the width, then the number of patterns."""
        return ("d_model", "n_patterns")


class HopfieldMemory(nn.Module):
    """softmax(β ξ Kᵀ) V for the cue ξ = Σ_s W_E[s, t_s]: K holds the patterns, V the logits of each."""

    def __init__(self, signature: Lookup, d: int, n_patterns: int, beta: float) -> None:
        super().__init__()
        scale = 1 / math.sqrt(d)
        self.W_E = nn.Parameter(torch.randn(signature.length, signature.n_tokens, d) * scale)
        self.K = nn.Parameter(torch.randn(n_patterns, d) * scale)
        self.V = nn.Parameter(torch.randn(n_patterns, signature.n_classes))
        self.log_beta = nn.Parameter(torch.full((), math.log(beta)))  # its exponential stays positive

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        cue = self.W_E[positions, tokens].sum(dim=1)  # (slots, d)
        selection = (self.log_beta.exp() * cue @ self.K.mT).softmax(dim=-1)  # (slots, n_patterns)
        return selection @ self.V  # (slots, n_classes)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The architecture of this module."""
    return [Hopfield]
