"""Checks at the plugin border: what tasks, modules and solvers return is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from capbench.contract.signatures import Lookup, Recall, Signature
from capbench.contract.task import Problem, Task
from capbench.errors import PluginMisbehaved

MEMORY_WORDS = ("out of memory", "not enough memory", "DefaultCPUAllocator")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device: the CPU's allocator raises nothing more special than RuntimeError."""
    error = getattr(error, "inner_exception", error)  # torch.compile wraps what its backend raises
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in MEMORY_WORDS)


def checked_problem(problem: Problem, task: Task, slots: int) -> Problem:
    """A task's problem, if it has the shapes and types that its signature promises and only finite numbers."""
    expected = _input_shapes(task.signature, slots)
    got = [tuple(tensor.shape) for tensor in problem.inputs]
    if got not in expected:
        raise PluginMisbehaved(f"{task.name}.problem must return inputs of shapes {expected[0]}, got {got}")
    if isinstance(task.signature, Lookup) and problem.inputs[0].dtype != torch.int64:
        raise PluginMisbehaved(f"{task.name}.problem must return int64 tokens, got {problem.inputs[0].dtype}")
    if not problem.mask.is_floating_point():
        raise PluginMisbehaved(f"{task.name}.problem must return a floating-point mask, got {problem.mask.dtype}")
    for tensor in tree_leaves(problem):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise PluginMisbehaved(f"{task.name}.problem must return finite numbers, got NaN or infinity")
    return problem


def checked_module(module: nn.Module, name: str) -> nn.Module:
    """A freshly built module, if its weights are finite floating-point numbers."""
    for part, weights in module.named_parameters():
        if not weights.is_floating_point() or not bool(torch.isfinite(weights).all()):
            raise PluginMisbehaved(f"{name}.build must return finite floating-point weights, got others in {part}")
    return module


def checked_start(weights: dict[str, Tensor], module: nn.Module, name: str) -> dict[str, Tensor]:
    """A solver's starting weights, if they are finite and fit parameters of the module."""
    shapes = {part: tuple(parameter.shape) for part, parameter in module.named_parameters()}
    for part, tensor in weights.items():
        if tuple(tensor.shape) != shapes.get(part) or not bool(torch.isfinite(tensor).all()):
            raise PluginMisbehaved(
                f"{name}.start must return finite weights in the shapes of {shapes}, got {part}: {_described(tensor)}"
            )
    return weights


def checked_outputs(outputs: Tensor, signature: Signature, problem: Problem, weights: Mapping[str, Tensor]) -> Tensor:
    """A module's outputs, if they have the shape that the signature asks for and the type of the weights."""
    if not isinstance(outputs, Tensor):
        raise PluginMisbehaved(f"forward must return a tensor, got {type(outputs).__name__}")
    n_classes = None if not isinstance(signature, Lookup | Recall) else signature.n_classes
    n_rows = len(problem.inputs[-1])
    expected = (n_rows, n_rows if n_classes is None else n_classes)
    if tuple(outputs.shape) != expected:
        raise PluginMisbehaved(f"forward must return outputs of shape {expected}, got {tuple(outputs.shape)}")
    dtypes = {tensor.dtype for tensor in weights.values()}
    if dtypes and outputs.dtype not in dtypes:
        raise PluginMisbehaved(f"forward must return outputs of the weights' type, got {outputs.dtype}")
    return outputs


def checked_loss(loss: Tensor, task: Task) -> Tensor:
    """A task's loss, if it is one floating-point number."""
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        raise PluginMisbehaved(f"{task.name}.loss must return a 0-d floating-point tensor, got {_described(loss)}")
    return loss


def checked_metrics(metrics: dict[str, Tensor], task: Task) -> dict[str, Tensor]:
    """A task's metrics, if each is one number and the criterion's is among them."""
    if task.criterion.metric not in metrics:
        raise PluginMisbehaved(
            f"{task.name}.metrics must include its criterion's {task.criterion.metric!r}, got {sorted(metrics)}"
        )
    for name, value in metrics.items():
        if not isinstance(value, Tensor) or value.dim():
            raise PluginMisbehaved(f"{task.name}.metrics must return 0-d tensors, got {name}: {_described(value)}")
    return metrics


@contextmanager
def untouched(problem: Problem, weights: Tensor, names: str) -> Iterator[None]:
    """Raises PluginMisbehaved if code in this scope changes the facts or the weights in place."""
    watched = [*tree_leaves(problem), weights]
    before = [tensor._version for tensor in watched]
    yield
    if [tensor._version for tensor in watched] != before:
        raise PluginMisbehaved(f"{names} changed inputs or weights in place; work on a copy (tensor.clone())")


def _input_shapes(signature: Signature, slots: int) -> list[list[tuple[int, ...]]]:
    """The shapes that a problem's inputs may have."""
    if isinstance(signature, Lookup):
        return [[(slots, signature.length)]]
    if isinstance(signature, Recall):
        return [[(n, signature.n_context, signature.d_input), (slots, signature.d_input)] for n in (slots, 1)]
    return [[(signature.n_items, signature.d_item)]]


def _described(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
