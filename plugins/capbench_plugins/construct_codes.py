"""Unit vectors that stand for classes: a vector scores highest with itself, so that argmax names the class."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

CONFIDENCE = 40.0
"""Nats by which the logit of the right class leads: its probability is 1 to the last digit of float64."""


def class_codes(n_classes: int, width: int, generator: Generator) -> Tensor:
    """(n_classes, width) distinct unit vectors in float64: a sign, points on a circle, or random directions.

    Points on a circle give rank-2 logits whose argmax is the identity of any size [derived]; their neighbours differ
    by 1 - cos(2π / n_classes), 2e-3 at 100 classes.
    """
    if width == 1:
        return torch.tensor([[1.0], [-1.0]], dtype=torch.float64)[:n_classes]
    if width == 2:
        return circle(torch.arange(n_classes) / n_classes)
    return F.normalize(torch.randn(n_classes, width, dtype=torch.float64, generator=generator), dim=1)


def circle(turns: Tensor) -> Tensor:
    """Points on the unit circle at these shares of a full turn, (..., 2)."""
    angle = 2 * math.pi * turns.double()
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def width_needed(n_classes: int) -> int:
    """The least width in which argmax can name every class."""
    return 1 if n_classes <= 2 else 2


def margin(codes: Tensor) -> float:
    """How far the score of a code with itself leads those with all others, at least."""
    overlaps = codes @ codes.T  # (classes, classes)
    return 1 - float(overlaps.fill_diagonal_(-1).max())


def readout(codes: Tensor) -> Tensor:
    """(width, n_classes) map from codes to logits in which the right class leads by `CONFIDENCE` nats."""
    return codes.T * (CONFIDENCE / margin(codes))
