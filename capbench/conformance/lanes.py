"""Rules of the engine: models batch together, stay on one device, and none notices the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call

from capbench.conformance.outcome import DoesNotApply, Violation, brief
from capbench.conformance.subject import label, small_stack, trials
from capbench.engine.lanes import LaneGroup, Pair, TrialSpec
from capbench.engine.stack import Batched, LoopFallback
from capbench.engine.train import train_group
from capbench.task import Problem

N_LANES = 4


def together(pairs: Iterable[Pair]) -> None:
    """Refuses a pair whose models fall back to training one after the other."""
    for pair in pairs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Batched(pair, small_stack(pair))
        fallbacks = [str(w.message) for w in caught if issubclass(w.category, LoopFallback)]
        if fallbacks:
            raise Violation(
                f"{label(pair)} to train under vmap",
                f"it falls back to a loop, which works but is many times slower: {fallbacks[0]}",
                "do not branch on the values of tensors nor call .item(): use torch.where, clamp and masks; "
                "write no tensor in place that vmap does not know",
            )


def unaffected_by_company(pairs: Iterable[Pair]) -> None:
    """Refuses a pair whose trials end elsewhere beside others than alone; bit for bit, eager on the CPU."""
    for pair in pairs:
        _need_hash(pair)
        crowd = trials(pair, N_LANES)
        beside, alone = _trained(pair, crowd)[crowd[2]], _trained(pair, crowd[2:3])[crowd[2]]
        if not all(torch.allclose(beside[name], alone[name], 0, 0, equal_nan=True) for name in alone):
            raise Violation(
                f"the same weights alone and beside {N_LANES - 1} others ({label(pair)})",
                "they differ",
                "keep no state between models: nothing on the class, in the module or in a closure; "
                "normalise over a model's own axes only",
            )


def _need_hash(pair: Pair) -> None:
    """The engine keeps what it learns of a pair by its hash."""
    try:
        hash(pair)
    except TypeError as error:
        raise DoesNotApply("its configuration cannot be hashed, which the check `immutable` tells") from error


def on_one_device(pairs: Iterable[Pair]) -> None:
    """Refuses a pair that mixes devices, found out on `meta`, which computes shapes and holds no numbers."""
    for pair in pairs:
        stack = small_stack(pair)
        weights = {n: w[0].to("meta") for n, w in {**stack.layout.split(stack.weights), **stack.fixed}.items()}
        problem = Problem(
            tuple(tensor[0].to("meta") for tensor in stack.problem.inputs),
            stack.problem.targets[0].to("meta"),
            stack.problem.mask[0].to("meta"),
        )
        try:
            outputs = functional_call(stack.module.to("meta"), weights, problem.inputs)
            pair.task.plugin.loss(outputs, problem)
            pair.task.plugin.metrics(outputs, problem)
        except Exception as error:
            raise _stray(pair, error) from error


def _stray(pair: Pair, error: Exception) -> Exception:
    """What an error on the meta device means."""
    words = str(error)
    if any(sign in words for sign in ("item()", "_local_scalar_dense", "data-dependent", "nonzero")):
        return DoesNotApply("it looks at the values of tensors, which the check of vmap tells")
    return Violation(
        f"all tensors on the device of the inputs ({label(pair)})",
        brief(error),
        "register constants by self.register_buffer, or make them there: torch.ones(n, device=x.device)",
    )


def _trained(pair: Pair, specs: tuple[TrialSpec, ...]) -> dict[TrialSpec, dict[str, Tensor]]:
    """The weights at which each trial ends."""
    ended: dict[TrialSpec, dict[str, Tensor]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopFallback)  # another check tells
        train_group(
            LaneGroup(pair, pair.slots(specs[0]), specs),
            torch.device("cpu"),
            lambda t, weights: ended.update({TrialSpec(t.load, t.seed, t.learning_rate): weights}),
            lambda *_: None,
        )
    return ended
