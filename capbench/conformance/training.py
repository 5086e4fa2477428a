"""Training rules shared by tasks, architectures and solvers: models batch, stay on one device and compile."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call

from capbench.conformance.check import DoesNotApply, Violation, summarize_error
from capbench.conformance.subject import Subject, label, small_stack, trial_specs
from capbench.contract.solver import GradientSolver
from capbench.contract.task import Problem
from capbench.engine.devices import counting_dtype
from capbench.engine.stack import Batched, LoopFallback, Stack
from capbench.engine.step import Step, compile_block
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, TrialGroup, TrialSpec

N_LANES = 4
TOLERANCE = 1e-4
"""How far one compiled step may differ from an eager one: rounding, grown by Adam's division by small numbers."""


def check_batching(setups: Iterable[Setup]) -> None:
    """Refuses a pair whose models fall back to training one after the other."""
    for setup in setups:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Batched(setup, small_stack(setup))
        fallbacks = [str(w.message) for w in caught if issubclass(w.category, LoopFallback)]
        if fallbacks:
            raise Violation(
                f"{label(setup)} to train under vmap",
                f"it falls back to a loop, which works but is many times slower: {fallbacks[0]}",
                "do not branch on tensor values or call .item(): use torch.where, clamp and masks; "
                "write in place only to tensors made from the inputs or the weights",
            )


def check_lane_independence(setups: Iterable[Setup]) -> None:
    """Refuses a pair whose trials end with other weights in a group than alone; bit for bit, eager on the CPU."""
    for setup in setups:
        _need_hash(setup)
        specs = trial_specs(setup, N_LANES)
        in_group, alone = _trained(setup, specs)[specs[2]], _trained(setup, specs[2:3])[specs[2]]
        if not all(torch.allclose(in_group[name], alone[name], 0, 0, equal_nan=True) for name in alone):
            raise Violation(
                f"the same weights alone and in a group of {N_LANES} models ({label(setup)})",
                "they differ",
                "keep no state between models: nothing on the class, in the module or in a closure; "
                "normalise only over axes of a single model",
            )


def check_single_device(setups: Iterable[Setup]) -> None:
    """Refuses a pair that mixes devices, detected on `meta`, which computes shapes without values."""
    for setup in setups:
        stack = small_stack(setup)
        weights = {n: w[0].to("meta") for n, w in {**stack.layout.split(stack.weights), **stack.fixed}.items()}
        problem = Problem(
            tuple(tensor[0].to("meta") for tensor in stack.problem.inputs),
            stack.problem.targets[0].to("meta"),
            stack.problem.mask[0].to("meta"),
        )
        try:
            outputs = functional_call(stack.module.to("meta"), weights, problem.inputs)
            setup.task.plugin.loss(outputs, problem)
            setup.task.plugin.metrics(outputs, problem)
        except Exception as error:
            raise _explain_meta_error(setup, error) from error


def check_compiled_step(subject: Subject) -> str:
    """Compiles and takes one step of a small stack; returns the pair and how long compiling took."""
    if not subject.compiles:
        raise DoesNotApply("skipped because it is slow; `capbench check` without --no-compile runs it")
    _need_compiler()
    setup = subject.setups()[0]
    stack = small_stack(setup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batched = Batched(setup, stack)
        if not batched.is_batched:
            raise DoesNotApply("it does not batch, which the check `batches_by_vmap` reports")
        return f"{label(setup)}, {_compile(setup, batched, stack):.0f} s to compile"


def _need_hash(setup: Setup) -> None:
    """The engine caches what it learns about a setup under the setup's hash."""
    try:
        hash(setup)
    except TypeError as error:
        raise DoesNotApply("its configuration cannot be hashed, which the check `immutable` reports") from error


def _trained(setup: Setup, specs: tuple[TrialSpec, ...]) -> dict[TrialSpec, dict[str, Tensor]]:
    """The final weights of each trial."""
    ended: dict[TrialSpec, dict[str, Tensor]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopFallback)  # `batches_by_vmap` reports it
        train_group(
            TrialGroup(setup, setup.slots(specs[0]), specs),
            torch.device("cpu"),
            lambda _: None,
            lambda *_: None,
            on_weights=lambda t, weights: ended.update({TrialSpec(t.load, t.seed, t.learning_rate): weights}),
        )
    return ended


def _explain_meta_error(setup: Setup, error: Exception) -> Exception:
    """Distinguishes a tensor on another device from a branch on tensor values, which fails on `meta` as well."""
    message = str(error)
    if any(sign in message for sign in ("item()", "_local_scalar_dense", "data-dependent", "nonzero")):
        return DoesNotApply("it reads tensor values, which the check `batches_by_vmap` reports")
    return Violation(
        f"all tensors on the device of the inputs ({label(setup)})",
        summarize_error(error),
        "register constants with self.register_buffer, or create them on the device: torch.ones(n, device=x.device)",
    )


def _need_compiler() -> None:
    """Without a C++ compiler on this machine, a failure would say nothing about the plugin."""
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(2))
    except Exception as error:
        raise DoesNotApply(f"torch cannot compile on this machine: {summarize_error(error)}") from error


def _compile(setup: Setup, batched: Batched, stack: Stack) -> float:
    """Takes one compiled and one eager step from the same weights; returns the seconds that compiling took."""
    solver = setup.solver.plugin
    assert isinstance(solver, GradientSolver)
    number = torch.zeros((), dtype=counting_dtype(stack.weights.device))
    started, after = time.perf_counter(), []
    try:
        programs = compile_block(setup, batched, stack)
    except Exception as error:
        raise _explain_compile_failure(label(setup), summarize_error(error)) from error
    seconds = time.perf_counter() - started
    for step in (Step(batched, setup, programs), Step(batched, setup)):
        own = stack.snapshot()
        step(own, solver.init(own.weights), [number])
        after.append(own.weights)
    if not torch.allclose(after[0], after[1], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        raise Violation(
            f"the same weights of {label(setup)} after a compiled and an eager step, to {TOLERANCE:g}",
            "they differ",
            "look for operations on uninitialised memory (torch.empty) and for state that forward changes; "
            "if there are none, it is a bug of torch's compiler: use --compile off, and --no-compile skips this check",
        )
    return seconds


def _explain_compile_failure(pair: str, failure: str) -> Violation:
    return Violation(
        f"a step of {pair} that torch.compile accepts",
        f"{failure} (training falls back to the eager step)",
        "use torch operations only: no numpy, no printing, no growing lists of tensors, no branch on the step",
    )
