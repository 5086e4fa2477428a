"""Checks at the plugin border: what tasks, modules and solvers return is checked before it is used."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from capbench.contract.signatures import Lookup, Signature
from capbench.contract.task import Problem, Task
from capbench.engine.torch_private import n_writes, tree_leaves
from capbench.engine.trials import seeded
from capbench.errors import ChangesInTraining, DeviceFailed, PluginMisbehaved, TrialTimedOut

MEMORY_WORDS = ("out of memory", "not enough memory", "DefaultCPUAllocator", "STATUS_ALLOC_FAILED")
"""What allocators say when memory runs out; the last is what CUDA's libraries say, which allocate their own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device: the CPU's allocator raises nothing more special than RuntimeError."""
    error = getattr(error, "inner_exception", error)  # torch.compile wraps what its backend raises
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in MEMORY_WORDS)


def check_still_works(device: torch.device) -> None:
    """Raises DeviceFailed where a CUDA error has made every later call on the device fail too.

    Such an error ends with the process; the calls that follow it are not at fault. Running out of memory is none.
    """
    if device.type != "cuda":
        return
    try:
        torch.ones(1, device=device).add(1).tolist()
    except RuntimeError as error:
        if is_out_of_memory(error):
            return
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DeviceFailed(
            f"{device} no longer works in this process: {first}; finished trials are stored: give the same command "
            "again, and with CUDA_LAUNCH_BLOCKING=1 to see which operation fails"
        ) from error


def checked_problem(problem: Problem, task: Task, slots: int) -> Problem:
    """A task's problem, if it has the shapes and types that its signature promises and only finite numbers."""
    expected = task.signature.input_shapes(slots)
    got = [tuple(tensor.shape) for tensor in problem.inputs]
    if got != expected:
        raise PluginMisbehaved(f"{task.name}.problem must return inputs of shapes {expected}, got {got}")
    if task.signature.takes_tokens and problem.inputs[0].dtype != torch.int64:
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


def refuse_training_state(module: nn.Module, problem: Problem, name: str) -> None:
    """Raises ChangesInTraining for a module that is random in training or changes its buffers."""
    own = copy.deepcopy(module).train()
    before = {part: buffer.clone() for part, buffer in own.named_buffers()}
    try:
        first, second = (_outputs_at_seed(own, problem, seed) for seed in (0, 1))
    except TrialTimedOut:
        raise
    except Exception:  # noqa: BLE001 - the plugin border; training reports what forward raises
        return
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return  # training reports it
    changed = [part for part, buffer in own.named_buffers() if not torch.equal(buffer, before[part])]
    if changed:
        raise ChangesInTraining(
            f"a module must not change its buffers in training, as batch norm does; {name} changes {changed[0]}: "
            "normalise within one example (nn.LayerNorm, nn.RMSNorm)"
        )
    if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
        raise ChangesInTraining(
            f"a module must not be random in training, as dropout is; two calls of {name} differ: "
            "remove dropout and noise, or set their strength to 0"
        )


@torch.no_grad()
def _outputs_at_seed(module: nn.Module, problem: Problem, seed: int) -> Tensor:
    """The outputs with torch's default generator seeded."""
    with seeded(seed):
        outputs: Tensor = module(*(tensor.clone() for tensor in problem.inputs))  # training reports in-place changes
    return outputs


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
    expected = signature.output_shapes(len(problem.inputs[-1]))
    if tuple(outputs.shape) not in expected:
        if isinstance(signature, Lookup) and signature.n_reads > 1 and outputs.dim() == 2:
            raise PluginMisbehaved(
                f"the task asks at {signature.n_reads} positions and the architecture answers at the last one only; "
                "take one that derives from Mixer, or a task with one query"
            )
        raise PluginMisbehaved(f"forward must return outputs of shape {expected[0]}, got {tuple(outputs.shape)}")
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
    before = [n_writes(tensor) for tensor in watched]
    yield
    if [n_writes(tensor) for tensor in watched] != before:
        raise PluginMisbehaved(f"{names} changed inputs or weights in place; work on a copy (tensor.clone())")


def _described(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
