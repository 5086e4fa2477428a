"""Unit vectors that encode classes: each has its largest dot product with itself, so argmax decodes the class."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

CONFIDENCE = 40.0
"""Margin of the right class in nats: its probability is then 1 in float64."""


def class_codes(n_classes: int, width: int, generator: Generator) -> Tensor:
    """(n_classes, width) distinct unit vectors in float64: a sign, points on a circle, or random directions.

    Points on a circle give rank-2 logits whose argmax is the identity of any size [derived]; their neighbours differ
    by 1 - cos(2π / n_classes), which is 2e-3 for 100 classes.
    """
    if width == 1:
        return torch.tensor([[1.0], [-1.0]], dtype=torch.float64)[:n_classes]
    if width == 2:
        return circle(torch.arange(n_classes) / n_classes)
    return F.normalize(torch.randn(n_classes, width, dtype=torch.float64, generator=generator), dim=1)


def circle(turns: Tensor) -> Tensor:
    """Points on the unit circle at these fractions of a full turn, (..., 2)."""
    angle = 2 * math.pi * turns.double()
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def width_needed(n_classes: int) -> int:
    """The smallest width in which argmax can decode every class."""
    return 1 if n_classes <= 2 else 2


def margin(codes: Tensor) -> float:
    """The smallest margin of a code's dot product with itself over those with the others."""
    overlaps = codes @ codes.T  # (classes, classes)
    return 1 - float(overlaps.fill_diagonal_(-1).max())


def readout(codes: Tensor) -> Tensor:
    """(width, n_classes) map from codes to logits, with a margin of `CONFIDENCE` nats for the right class."""
    return codes.T * (CONFIDENCE / margin(codes))
