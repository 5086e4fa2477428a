"""The compiled training step: whether torch takes it, and whether it gives what the eager one gives."""

from __future__ import annotations

import warnings

import torch

from capbench.conformance.outcome import DoesNotApply, Violation, brief
from capbench.conformance.subject import STEPS, Subject, label, small_stack
from capbench.engine.devices import counting_dtype
from capbench.engine.lanes import Pair
from capbench.engine.stack import Batched, Stack
from capbench.engine.step import OTHER_NUMBERS, CompileFailed, Step
from capbench.solver import GradientSolver


def compiled_step(subject: Subject) -> str:
    """Takes a compiled step of a small stack; says which pair it was and how long compiling took."""
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
        seconds = _compile(pair, batched, stack)
    failures = [str(w.message) for w in caught if issubclass(w.category, CompileFailed)]
    if failures:
        _refuse(label(pair), failures[0])
    return f"{label(pair)}, {seconds:.0f} s to compile"


def _compile(pair: Pair, batched: Batched, stack: Stack) -> float:
    """Takes one step from a copy of the stack's weights; the seconds that compiling took."""
    solver = pair.solver.plugin
    assert isinstance(solver, GradientSolver)
    own = stack.snapshot()
    step = Step(batched, solver, STEPS, len(own.weights))
    step(own, solver.init(own.weights), torch.zeros((), dtype=counting_dtype(own.weights.device)))
    return step.compile_seconds


def _refuse(words: str, failure: str) -> None:
    if OTHER_NUMBERS in failure:
        raise Violation(
            f"weights of {words} as after an eager step",
            "they differ (training falls back to the eager step)",
            "look for operations on uninitialised memory (torch.empty) and for state that forward changes; "
            "should there be none, torch's compiler is mistaken, and --no-compile leaves this check out",
        )
    raise Violation(
        f"a step of {words} that torch.compile takes",
        f"{failure} (training falls back to the eager step)",
        "keep to torch operations: no numpy, no printing, no growing lists of tensors, no branch on the step",
    )


def _need_compiler() -> None:
    """A machine without a C++ compiler cannot tell anything of a plugin."""
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(2))
    except Exception as error:
        raise DoesNotApply(f"torch cannot compile on this machine: {brief(error)}") from error
