"""Rules for architectures: modules with outputs of the right shape that train in batches, each as if alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from capbench.conformance.check import Check, DoesNotApply, Violation, unexpected_error
from capbench.conformance.side_effects import refuse_changes_except_torch_draws, refuse_global_changes
from capbench.conformance.subject import Subject, build, output_shape, small_problem
from capbench.conformance.training import (
    check_batching,
    check_compiled_step,
    check_lane_independence,
    check_single_device,
)
from capbench.contract.shapes import TOLERANCE, is_near
from capbench.contract.signatures import Lookup
from capbench.contract.task import Problem
from capbench.engine.trials import Setup
from capbench.errors import UnsupportedSignature, UserError
from capbench.measure.matching import count_parameters

SHAPE_GROWTH = 4
"""Shapes are asked for at this multiple of the parameters at smoke-preset sizes."""


def builds(subject: Subject) -> str:
    """It builds a module for at least one built-in task, and raises UnsupportedSignature for the others."""
    fitting = []
    for task in subject.tasks:
        try:
            module = build(subject.configured.plugin, task.plugin.signature)
        except UnsupportedSignature:
            continue
        except Exception as error:
            raise Violation(
                f"a module for {task.plugin.name}, or UnsupportedSignature with the reason",
                unexpected_error(error).seen,
                f"test the signature first: if not isinstance(signature, …): raise UnsupportedSignature('…'); "
                f"here it is {task.plugin.signature}",
            ) from error
        _refuse_untrainable(module)
        fitting.append(task.plugin.name)
    if subject.tasks and not fitting:
        raise Violation(
            "a module for at least one of the three signatures", "it refuses every task", "support one of them"
        )
    return f"fits {', '.join(fitting)}"


def shapes(subject: Subject) -> None:
    """The outputs have the shape that the signature specifies."""
    for setup in subject.buildable_setups:
        problem = small_problem(setup.task.plugin)
        signature = setup.task.plugin.signature
        outputs = build(setup.architecture.plugin, signature)(*problem.inputs)
        expected, seen = output_shape(signature, problem), tuple(outputs.shape)
        if seen != expected:
            in_and_out, _, _ = (type(signature).__doc__ or "").partition("\n")
            raise Violation(
                f"outputs of shape {expected} on {setup.task.plugin.name}",
                f"{seen}",
                f"make forward return the outputs of {type(signature).__name__}: {in_and_out}",
            )


def finite_outputs(subject: Subject) -> None:
    """Outputs are finite floating-point numbers, in the precision of the weights."""
    for setup in subject.setups():
        for dtype in (torch.float32, torch.float64):
            module = build(setup.architecture.plugin, setup.task.plugin.signature).to(dtype)
            problem = _cast(small_problem(setup.task.plugin), dtype)
            outputs = module(*problem.inputs)
            if outputs.dtype != dtype or not outputs.isfinite().all():
                seen = f"{outputs.dtype}" + ("" if outputs.isfinite().all() else " with NaN or infinity")
                raise Violation(
                    f"finite {dtype} outputs from {dtype} weights on {setup.task.plugin.name}",
                    seen,
                    "create constants with the input's dtype: torch.ones(n, dtype=x.dtype); scale the initial weights",
                )


def deterministic(subject: Subject) -> None:
    """The same seed gives the same weights, and the same weights the same outputs."""
    for setup in subject.setups():
        signature, problem = setup.task.plugin.signature, small_problem(setup.task.plugin)
        first, second = (build(setup.architecture.plugin, signature) for _ in range(2))
        weights = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
        if not all(torch.equal(a, b) for a, b in weights):
            raise Violation(
                f"equal weights from equal seeds on {setup.task.plugin.name}",
                "two builds differ",
                "draw initial weights only with torch (torch.randn, nn.init), never with random, numpy or the clock",
            )
        if not torch.equal(first(*problem.inputs), first(*problem.inputs)):
            raise Violation(
                "equal outputs from equal weights", "two calls of forward differ", "remove dropout and noise"
            )


def no_global_randomness(subject: Subject) -> None:
    """build seeds nothing and draws only from torch; forward draws nothing."""
    for setup in subject.setups():
        signature, problem = setup.task.plugin.signature, small_problem(setup.task.plugin)
        refuse_changes_except_torch_draws(lambda: setup.architecture.plugin.build(signature))  # noqa: B023 - called immediately
        module = build(setup.architecture.plugin, signature)
        refuse_global_changes(lambda: module(*problem.inputs))  # noqa: B023 - called immediately


def finite_gradients(subject: Subject) -> None:
    """Every trained parameter has a finite gradient."""
    for setup in subject.setups():
        module = build(setup.architecture.plugin, setup.task.plugin.signature)
        problem = small_problem(setup.task.plugin)
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        loss = setup.task.plugin.loss(module(*problem.inputs), problem)
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            _refuse_gradient(setup, name, gradient)


def batches_by_vmap(subject: Subject) -> None:
    """Many models train at once under vmap, rather than one after the other."""
    check_batching(subject.setups())


def compiles(subject: Subject) -> str:
    """The training step can be compiled and updates the weights as the eager step does."""
    return check_compiled_step(subject)


def keeps_to_the_device(subject: Subject) -> None:
    """All tensors are on the inputs' device: one left on the CPU raises when the rest is on the `meta` device."""
    check_single_device(subject.setups())


def grid_equals_forward(subject: Subject) -> str:
    """forward_grid returns what forward returns for every input, in the order of the grid."""
    grids = [setup for setup in subject.setups() if setup.has_grid]
    if not grids:
        raise DoesNotApply("none of its modules defines forward_grid, which is optional")
    for setup in grids:
        signature = setup.task.plugin.signature
        assert isinstance(signature, Lookup)
        module = build(setup.architecture.plugin, signature).double()
        plain, fast = module(signature.grid()), module.forward_grid()  # type: ignore[operator]
        if plain.shape != fast.shape or not torch.allclose(plain, fast, rtol=1e-8, atol=1e-8):
            distance = f"off by {(plain - fast).abs().max():.3g}" if plain.shape == fast.shape else f"{fast.shape}"
            raise Violation(
                f"forward_grid() equal to forward(signature.grid()) on {setup.task.plugin.name}",
                distance,
                "let the last token change fastest and use the ranges in signature.spans; or remove forward_grid",
            )
    return f"on {', '.join(setup.task.plugin.name for setup in grids)}"


def analyses_in_numbers(subject: Subject) -> str:
    """analyse returns finite numbers by name."""
    by_task = {}
    for setup in subject.setups():
        problem = small_problem(setup.task.plugin)
        with torch.no_grad():
            by_task[setup.task.plugin.name] = found = setup.architecture.plugin.analyse(
                build(setup.architecture.plugin, setup.task.plugin.signature), problem
            )
        for name, value in found.items():
            if not isinstance(value, float | int) or not math.isfinite(value):
                raise Violation(
                    f"finite numbers from analyse on {setup.task.plugin.name}",
                    f"{name}: {value!r}",
                    "return {name: float(value)}; use only the facts whose mask is above 0",
                )
    if not any(by_task.values()):
        raise DoesNotApply("its analyse, which is optional, returns nothing")
    return f"on {', '.join(task for task, found in by_task.items() if found)}"


def shapes_have_the_count(subject: Subject) -> str:
    """shapes gives configurations that can be built and have about as many parameters as asked for."""
    n_found = 0
    for setup in subject.setups():
        task, plugin = setup.task.plugin, setup.architecture.plugin
        target = SHAPE_GROWTH * count_parameters(task, plugin)
        for shape in plugin.shapes(task.signature, target):
            _refuse_shape(setup, dict(shape), target)
            n_found += 1
    if not n_found:
        raise DoesNotApply("its shapes, which is optional, gives none")
    return f"{n_found} shapes"


def independent_of_other_models(subject: Subject) -> None:
    """A model trains to the same weights alone and in a group, up to rounding."""
    check_lane_independence(subject.setups())


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
    shapes_have_the_count,
    independent_of_other_models,
    compiles,
)


def _refuse_untrainable(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise Violation("a torch.nn.Module from build", f"{type(module).__name__}", "return an nn.Module")
    if not any(p.requires_grad for p in module.parameters()):
        raise Violation("at least one trained parameter", "none", "wrap weights in nn.Parameter")


def _refuse_shape(setup: Setup, fields: Mapping[str, Any], target: int) -> None:
    task = setup.task.plugin
    try:
        count = count_parameters(task, setup.architecture.replaced(**fields).plugin)
    except UserError as error:
        raise Violation(
            f"shapes that can be built on {task.name}", f"{fields}: {error}", "leave such shapes out"
        ) from error
    if not is_near(count, target):
        raise Violation(
            f"shapes within {TOLERANCE:.0%} of {target:,} parameters on {task.name}",
            f"{fields} has {count:,}",
            "leave out what is farther off, as find_shapes does",
        )


def _refuse_gradient(setup: Setup, name: str, gradient: torch.Tensor | None) -> None:
    task = setup.task.plugin.name
    if gradient is None:
        raise Violation(
            f"a gradient for every parameter on {task}",
            f"{name} does not affect the output",
            f"leave {name} out where it is not used, or register it as a buffer: unused parameters distort the count",
        )
    if not gradient.isfinite().all():
        raise Violation(
            f"finite gradients on {task}",
            f"NaN or infinity in the gradient of {name}",
            "keep the arguments of sqrt, log, norms and divisions away from 0 with clamp(min=…); torch.where does not "
            "help, because the branch that is not taken is differentiated as well",
        )


def _cast(problem: Problem, dtype: torch.dtype) -> Problem:
    return problem._replace(inputs=tuple(t.to(dtype) if t.is_floating_point() else t for t in problem.inputs))
