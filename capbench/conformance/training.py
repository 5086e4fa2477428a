"""Training rules shared by tasks, architectures and solvers: models batch, stay on one device and compile."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from capbench.conformance.check import DoesNotApply, Drawback, Violation, summarize_error
from capbench.conformance.subject import Subject, label, small_stack, trial_specs
from capbench.contract.task import Problem
from capbench.engine.codegen.program import compiler
from capbench.engine.lane_program import find_program
from capbench.engine.stack import Batched, LoopFallback
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, TrialGroup, TrialSpec

N_LANES = 4
ROUNDING = 1e-3
"""Largest difference between the weights of a model trained alone and in a group, as a share of the weights. Libraries
sum in another order for one matrix than for several; after eight steps up to 3e-4 of one tensor was seen."""


def check_batching(setups: Iterable[Setup]) -> None:
    """Warns of a pair whose models fall back to training one after the other, which is allowed."""
    for setup in setups:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Batched(setup, small_stack(setup))
        fallbacks = [str(w.message) for w in caught if issubclass(w.category, LoopFallback)]
        if fallbacks:
            raise Drawback(
                f"{label(setup)} to train under vmap",
                f"it falls back to a loop, which works but is many times slower: {fallbacks[0]}",
                "do not branch on tensor values or call .item(): use torch.where, clamp and masks; "
                "write in place only to tensors made from the inputs or the weights",
            )


def check_lane_independence(setups: Iterable[Setup]) -> None:
    """Refuses a pair whose trials end with other weights in a group than alone, up to rounding."""
    for setup in setups:
        _need_hash(setup)
        specs = trial_specs(setup, N_LANES)
        in_group, alone = _trained(setup, specs)[specs[2]], _trained(setup, specs[2:3])[specs[2]]
        if not _are_close(in_group, alone):
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
    """Compiles one step of a pair and compares it with the eager one; returns the pair and how long it took."""
    if not subject.compiles:
        raise DoesNotApply("skipped because it is slow; `capbench check` without --no-compile runs it")
    if compiler() is None:
        raise DoesNotApply("there is no C++ compiler on this machine")
    setup = subject.setups()[0]
    spec = trial_specs(setup, 1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        try:
            find_program(TrialGroup(setup, setup.slots(spec), (spec,)))
        except Exception as error:
            raise _explain_compile_failure(label(setup), summarize_error(error)) from error
    return f"{label(setup)}, {time.perf_counter() - started:.0f} s to compile"


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


def _are_close(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights differ by rounding alone; NaN equals NaN."""
    one, other = (torch.cat([weights[name].flatten() for name in others]) for weights in (some, others))
    if not torch.equal(one.isnan(), other.isnan()):
        return False
    return bool((one - other).nan_to_num().norm() <= ROUNDING * other.nan_to_num().norm())


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


def _explain_compile_failure(pair: str, failure: str) -> Violation:
    return Violation(
        f"a step of {pair} that can be compiled",
        f"{failure} (training falls back to the eager step)",
        "use torch operations only: no numpy, no sorting, no branch on the step or on values of tensors",
    )
