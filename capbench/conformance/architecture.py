"""Rules for architectures: modules that answer in shape, train together, and behave the same in any company."""

from __future__ import annotations

import math

import torch
from torch import nn

from capbench.conformance.compiled import compiled_step
from capbench.conformance.exercise import without_seeding, without_traces
from capbench.conformance.lanes import on_one_device, together, unaffected_by_company
from capbench.conformance.outcome import Check, DoesNotApply, Violation, unforeseen
from capbench.conformance.subject import Subject, build, output_shape, small_problem
from capbench.engine.lanes import Pair
from capbench.errors import UnsupportedSignature
from capbench.signatures import Lookup
from capbench.task import Problem


def builds(subject: Subject) -> str:
    """It builds a module for some built-in task, and says UnsupportedSignature where it does not."""
    fits = []
    for task in subject.tasks:
        try:
            module = build(subject.configured.plugin, task.plugin.signature)
        except UnsupportedSignature:
            continue
        except Exception as error:
            raise Violation(
                f"a module for {task.plugin.name}, or UnsupportedSignature with the reason",
                unforeseen(error).seen,
                f"test the signature first: if not isinstance(signature, …): raise UnsupportedSignature('…'); "
                f"here it is {task.plugin.signature}",
            ) from error
        _refuse_untrainable(module)
        fits.append(task.plugin.name)
    if subject.tasks and not fits:
        raise Violation("a module for at least one of the three signatures", "it refuses every task", "support one")
    return f"fits {', '.join(fits)}"


def shapes(subject: Subject) -> None:
    """The outputs have the shape that the signature names."""
    for pair in subject.fitting:
        problem = small_problem(pair.task.plugin)
        signature = pair.task.plugin.signature
        outputs = build(pair.architecture.plugin, signature)(*problem.inputs)
        expected, seen = output_shape(signature, problem), tuple(outputs.shape)
        if seen != expected:
            raise Violation(
                f"outputs of shape {expected} on {pair.task.plugin.name}",
                f"{seen}",
                f"make forward return what {type(signature).__name__} says: {type(signature).__doc__}".partition("\n")[
                    0
                ],
            )


def finite_outputs(subject: Subject) -> None:
    """Outputs are finite floating-point numbers, in the precision of the weights."""
    for pair in subject.pairs():
        for dtype in (torch.float32, torch.float64):
            module = build(pair.architecture.plugin, pair.task.plugin.signature).to(dtype)
            problem = _cast(small_problem(pair.task.plugin), dtype)
            outputs = module(*problem.inputs)
            if outputs.dtype != dtype or not outputs.isfinite().all():
                seen = f"{outputs.dtype}" + ("" if outputs.isfinite().all() else " with NaN or infinity")
                raise Violation(
                    f"finite {dtype} outputs from {dtype} weights on {pair.task.plugin.name}",
                    seen,
                    "make constants with the dtype of the input: torch.ones(n, dtype=x.dtype); scale initial weights",
                )


def deterministic(subject: Subject) -> None:
    """The same seed gives the same weights, and the same weights the same outputs."""
    for pair in subject.pairs():
        signature, problem = pair.task.plugin.signature, small_problem(pair.task.plugin)
        first, second = (build(pair.architecture.plugin, signature) for _ in range(2))
        same = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
        if not all(torch.equal(a, b) for a, b in same):
            raise Violation(
                f"equal weights from equal seeds on {pair.task.plugin.name}",
                "two builds differ",
                "draw initial weights from torch alone (torch.randn, nn.init), never from random, numpy or the clock",
            )
        if not torch.equal(first(*problem.inputs), first(*problem.inputs)):
            raise Violation(
                "equal outputs from equal weights", "two calls of forward differ", "keep dropout and noise out"
            )


def no_global_randomness(subject: Subject) -> None:
    """build seeds nothing and draws from torch alone; forward draws nothing."""
    for pair in subject.pairs():
        signature, problem = pair.task.plugin.signature, small_problem(pair.task.plugin)
        without_seeding(lambda: pair.architecture.plugin.build(signature))  # noqa: B023 - called at once
        module = build(pair.architecture.plugin, signature)
        without_traces(lambda: module(*problem.inputs))  # noqa: B023 - called at once


def finite_gradients(subject: Subject) -> None:
    """Every trained parameter has a finite gradient."""
    for pair in subject.pairs():
        module, problem = build(pair.architecture.plugin, pair.task.plugin.signature), small_problem(pair.task.plugin)
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        loss = pair.task.plugin.loss(module(*problem.inputs), problem)
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            _refuse_gradient(pair, name, gradient)


def batches_by_vmap(subject: Subject) -> None:
    """Many models train at once under vmap, rather than one after the other."""
    together(subject.pairs())


def compiles(subject: Subject) -> str:
    """The training step can be compiled, and moves the weights as the eager one does."""
    return compiled_step(subject)


def keeps_to_the_device(subject: Subject) -> None:
    """No tensor is left behind on the CPU: on the `meta` device, a stray one meets another device and raises."""
    on_one_device(subject.pairs())


def grid_equals_forward(subject: Subject) -> str:
    """forward_grid gives what forward gives on every input, in the grid's order."""
    grids = [pair for pair in subject.pairs() if pair.has_grid]
    if not grids:
        raise DoesNotApply("no module of it defines forward_grid, which is optional")
    for pair in grids:
        signature = pair.task.plugin.signature
        assert isinstance(signature, Lookup)
        module = build(pair.architecture.plugin, signature).double()
        plain, fast = module(signature.grid()), module.forward_grid()  # type: ignore[operator]
        if plain.shape != fast.shape or not torch.allclose(plain, fast, rtol=1e-8, atol=1e-8):
            distance = f"off by {(plain - fast).abs().max():.3g}" if plain.shape == fast.shape else f"{fast.shape}"
            raise Violation(
                f"forward_grid() equal to forward(signature.grid()) on {pair.task.plugin.name}",
                distance,
                "let the last token change fastest, and mind signature.spans; or leave forward_grid out",
            )
    return f"on {', '.join(pair.task.plugin.name for pair in grids)}"


def analyses_in_numbers(subject: Subject) -> str:
    """analyse says what it says of a model in finite numbers, by name."""
    told = {}
    for pair in subject.pairs():
        problem = small_problem(pair.task.plugin)
        with torch.no_grad():
            told[pair.task.plugin.name] = found = pair.architecture.plugin.analyse(
                build(pair.architecture.plugin, pair.task.plugin.signature), problem
            )
        for name, value in found.items():
            if not isinstance(value, float | int) or not math.isfinite(value):
                raise Violation(
                    f"finite numbers from analyse on {pair.task.plugin.name}",
                    f"{name}: {value!r}",
                    "return {name: float(value)}; look at the facts whose mask is above 0 only",
                )
    if not any(told.values()):
        raise DoesNotApply("it has nothing to say under --analyse, which is optional")
    return f"on {', '.join(task for task, found in told.items() if found)}"


def independent_of_company(subject: Subject) -> None:
    """A model trains to the same bits alone and beside others."""
    unaffected_by_company(subject.pairs())


CHECKS: tuple[Check[Subject], ...] = (
    builds,
    shapes,
    finite_outputs,
    deterministic,
    no_global_randomness,
    finite_gradients,
    batches_by_vmap,
    keeps_to_the_device,
    grid_equals_forward,
    analyses_in_numbers,
    independent_of_company,
    compiles,
)


def _refuse_untrainable(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise Violation("a torch.nn.Module from build", f"{type(module).__name__}", "return a module")
    if not any(p.requires_grad for p in module.parameters()):
        raise Violation("at least one trained parameter", "none", "wrap weights in nn.Parameter")


def _refuse_gradient(pair: Pair, name: str, gradient: torch.Tensor | None) -> None:
    task = pair.task.plugin.name
    if gradient is None:
        raise Violation(
            f"a gradient for every parameter on {task}",
            f"{name} does not take part in the output",
            f"leave {name} out where it is not used, or register it as a buffer: parameters are counted",
        )
    if not gradient.isfinite().all():
        raise Violation(
            f"finite gradients on {task}",
            f"NaN or infinity in the gradient of {name}",
            "keep sqrt, log, norms and divisions away from 0 by clamp(min=…) before them; torch.where does not help, "
            "as the branch not taken is differentiated, too",
        )


def _cast(problem: Problem, dtype: torch.dtype) -> Problem:
    return problem._replace(inputs=tuple(t.to(dtype) if t.is_floating_point() else t for t in problem.inputs))
