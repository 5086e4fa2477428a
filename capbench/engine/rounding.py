"""Rounded weights: what a trained model scores with fewer bits per weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from capbench.contract.task import Problem
from capbench.documents.result import BITS, rounded_name
from capbench.engine.stack import Named
from capbench.engine.torch_private import tree_map
from capbench.engine.trials import Setup


def round_tensor(tensor: Tensor, bits: int) -> Tensor:
    """The nearest of 2^bits - 1 evenly spaced values, symmetric about 0, the largest of which is the tensor's own.

    At 2 bits they are -max, 0 and max. A tensor of zeros stays as it is.
    """
    most = 2 ** (bits - 1) - 1
    step = tensor.abs().amax() / most if tensor.numel() else tensor.new_ones(())
    return torch.where(step > 0, (tensor / step).round() * step, tensor)


@torch.no_grad()
def score_rounded(setup: Setup, module: nn.Module, weights: Named, fixed: Named, problem: Problem) -> dict[str, float]:
    """The criterion's metric and the bits stored after each rounding that the setup asks for, computed on the CPU.

    Trained tensors are rounded, one scale each; tensors that are not trained are no parameters, and stay.
    """
    weights, fixed, problem = tree_map(lambda tensor: tensor.cpu(), (weights, fixed, problem))
    wanted, found = {setup.training.criterion.metric, BITS}, {}
    for bits in setup.training.precisions:
        rounded = {name: round_tensor(tensor, bits) for name, tensor in weights.items()}
        outputs: Tensor = functional_call(module, {**rounded, **fixed}, problem.inputs)
        for name, value in setup.task.plugin.metrics(outputs, problem).items():
            if name in wanted and math.isfinite(float(value)):
                found[rounded_name(name, bits)] = float(value)
    return found
