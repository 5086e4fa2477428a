"""The compiled training step: whether torch takes it, and whether it gives what the eager one gives."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from capbench.conformance.outcome import DoesNotApply, Violation, brief
from capbench.conformance.subject import STEPS, Subject, label, small_stack
from capbench.engine.devices import counting_dtype
from capbench.engine.lanes import Pair
from capbench.engine.stack import Batched, Stack
from capbench.engine.step import CompileFailed, Step
from capbench.solver import GradientSolver

TOLERANCE = 1e-4
"""Largest difference of weights after a step, relative and absolute: a compiled step sums in another order."""


def compiled_step(subject: Subject) -> str:
    """Compares one compiled step of a small stack with an eager one; says which pair it was and how long it took."""
    if not subject.compiles:
        raise DoesNotApply("left out, as it takes long; `capbench check` without --no-compile does it")
    _need_compiler()
    pair = subject.pairs()[0]
    stack = small_stack(pair)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batched = Batched(pair, stack)
        if not batched.is_batched:
            raise DoesNotApply("it does not batch, which the check of vmap tells")
        eager, _ = _stepped(pair, batched, stack, compiled=False)
        compiled, seconds = _stepped(pair, batched, stack, compiled=True)
    failures = [str(w.message) for w in caught if issubclass(w.category, CompileFailed)]
    _refuse(label(pair), failures, bool(torch.allclose(compiled, eager, TOLERANCE, TOLERANCE, equal_nan=True)))
    return f"{label(pair)}, {seconds:.0f} s to compile"


def _stepped(pair: Pair, batched: Batched, stack: Stack, *, compiled: bool) -> tuple[Tensor, float]:
    """The weights after one step from a copy of the stack's, and the seconds that compiling took."""
    solver = pair.solver.plugin
    assert isinstance(solver, GradientSolver)
    own = stack.snapshot()
    step = Step(batched, solver, STEPS, len(own.weights) if compiled else None)
    step(own, solver.init(own.weights), torch.zeros((), dtype=counting_dtype(own.weights.device)))
    return own.weights, step.compile_seconds


def _refuse(words: str, failures: list[str], is_equal: bool) -> None:
    if failures:
        raise Violation(
            f"a step of {words} that torch.compile takes",
            f"{failures[0]} (training falls back to the eager step)",
            "keep to torch operations: no numpy, no printing, no growing lists of tensors, no branch on the step",
        )
    if not is_equal:
        raise Violation(
            f"weights of {words} within {TOLERANCE:g} of those after an eager step",
            "they differ",
            "look for operations on uninitialised memory (torch.empty) and for state that forward changes",
        )


def _need_compiler() -> None:
    """A machine without a C++ compiler cannot tell anything of a plugin."""
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(2))
    except Exception as error:
        raise DoesNotApply(f"torch cannot compile on this machine: {brief(error)}") from error
