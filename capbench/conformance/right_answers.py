"""Right answers: outputs that a perfect model would give, where the targets say what they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from capbench.signatures import Relation, Signature
from capbench.task import Problem

SURE = 50.0
"""A logit that leaves no doubt."""


def right_answers(signature: Signature, problem: Problem) -> Tensor | None:
    """Outputs that hold every fact; None where targets are neither classes, edges, values nor distributions."""
    targets = problem.targets
    if isinstance(signature, Relation):
        return SURE * (2 * targets - 1)
    if not targets.is_floating_point() and targets.dim() == 1:
        return SURE * F.one_hot(targets, signature.n_classes).to(problem.mask.dtype)
    if signature.n_classes == 1:
        return targets.reshape(-1, 1)
    if targets.shape == (len(problem.mask), signature.n_classes):
        return torch.log(targets.clamp(min=1e-30))
    return None
