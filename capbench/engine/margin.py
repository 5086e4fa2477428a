"""How good explicit weights are: by how much right answers lead, in which precision they hold, and their condition."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from capbench.contract.task import Criterion, Problem, Task
from capbench.documents.result import quality_names
from capbench.engine.stack import Named
from capbench.engine.torch_private import tree_map

HALVINGS = 40
"""Steps of the bisection for the lead: it is then known to 1e-12 of the logit scale."""
LARGEST_LEAD = 4.0
"""No lead is larger: right answers set back by twice the scale of the logits are never right."""
RANK_TOLERANCE = 1e-12
"""Singular values below this share of the largest are taken for zero: many constructions have low rank on purpose."""


def lead(task: Task, outputs: Tensor, problem: Problem, criterion: Criterion) -> float | None:
    """The largest share of the logit scale by which right answers can be set back while the criterion is met.

    0 where it is not met at all; None where the task has no right answers to set back.
    """
    if task.handicapped(outputs, problem, 0.0) is None:
        return None

    def holds(share: float) -> bool:
        shifted = task.handicapped(outputs, problem, share)
        assert shifted is not None
        return criterion.is_met(float(task.metrics(shifted, problem)[criterion.metric]))

    low, high = 0.0, LARGEST_LEAD
    if not holds(low):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@torch.no_grad()
def weight_quality(
    task: Task, criterion: Criterion, module: nn.Module, weights: Named, fixed: Named, problem: Problem
) -> dict[str, float]:
    """Lead, metric in lower precision, largest weight and condition number; what is unknown is left out."""
    outputs: Tensor = functional_call(module, {**weights, **fixed}, problem.inputs)
    rounded = outputs.to(torch.bfloat16).to(outputs.dtype)
    low = {name: tensor.to(torch.bfloat16).to(tensor.dtype) for name, tensor in weights.items()}
    values = (
        lead(task, outputs, problem, criterion),
        lead(task, rounded, problem, criterion),
        _metric_in(torch.float32, task, criterion, module, {**weights, **fixed}, problem),
        _metric_in(outputs.dtype, task, criterion, module, {**low, **fixed}, problem),
        max(float(tensor.abs().max()) for tensor in weights.values()),
        max((condition_number(tensor) for tensor in weights.values() if tensor.dim() >= 2), default=1.0),
    )
    found = zip(quality_names(criterion.metric), values, strict=True)
    return {name: value for name, value in found if value is not None and math.isfinite(value)}


def condition_number(matrices: Tensor) -> float:
    """The largest ratio of a matrix's largest singular value to its smallest one that is not zero; 1 for zeros."""
    values = torch.linalg.svdvals(matrices.double())  # (…, smaller side), in descending order
    largest = values[..., :1]
    is_zero = values <= RANK_TOLERANCE * largest
    smallest = values.masked_fill(is_zero, math.inf).amin(dim=-1, keepdim=True)
    return float(torch.where(largest > 0, largest / smallest, torch.ones_like(largest)).max())


def _metric_in(
    dtype: torch.dtype, task: Task, criterion: Criterion, module: nn.Module, tensors: Named, problem: Problem
) -> float:
    """The criterion's metric with tensors and problem in a precision."""
    cast: tuple[Named, Problem] = tree_map(
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (tensors, problem)
    )
    outputs: Tensor = functional_call(module, cast[0], cast[1].inputs)
    return float(task.metrics(outputs, cast[1])[criterion.metric])
