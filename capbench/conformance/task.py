"""Rules for tasks: problems drawn only from their generator, scores in range, and masked slots ignored."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from capbench.conformance.check import Check, DoesNotApply, Violation
from capbench.conformance.side_effects import refuse_global_changes
from capbench.conformance.subject import Subject, output_shape, small_problem
from capbench.conformance.training import (
    check_batching,
    check_compiled_step,
    check_lane_independence,
    check_single_device,
)
from capbench.contract.signatures import Lookup, Relation, Signature
from capbench.contract.task import Problem, Task
from capbench.documents.result import BITS
from capbench.errors import LoadOutOfRange

CERTAIN_LOGIT = 50.0
"""A logit so large that softmax and sigmoid saturate."""


def shapes(subject: Subject) -> None:
    """Inputs, targets and mask have the shapes and types that the signature specifies."""
    task: Task = subject.configured.plugin
    problem = small_problem(task)
    for part, (seen, expected) in _parts(task, problem).items():
        if seen != expected:
            raise Violation(f"{part}: {expected}", seen, f"see the docstring of {type(task.signature).__name__}")
    if not problem.mask.is_floating_point() or (problem.mask < 0).any() or not (problem.mask > 0).any():
        raise Violation(
            "a floating-point mask, not negative and above 0 for some slot",
            f"{problem.mask.dtype} from {problem.mask.min()} to {problem.mask.max()}",
            "start from torch.zeros(slots) and set the slots that hold facts to 1.0",
        )


def values_in_range(subject: Subject) -> None:
    """Tokens and targets are in the ranges of the signature, and vectors are finite."""
    task: Task = subject.configured.plugin
    problem, signature = small_problem(task), task.signature
    if isinstance(signature, Lookup):
        for position, (start, stop) in enumerate(signature.spans):
            _refuse_outside(f"tokens at position {position}", problem.inputs[0][:, position], start, stop)
    elif not all(tensor.isfinite().all() for tensor in problem.inputs):
        raise Violation("finite vectors", "NaN or infinity", "keep divisions and logarithms away from 0")
    if not isinstance(signature, Relation) and not problem.targets.is_floating_point():
        _refuse_outside("targets", problem.targets, 0, signature.n_classes)


def loads(subject: Subject) -> None:
    """Loads from 1 to max_load give a problem, and others raise LoadOutOfRange."""
    task: Task = subject.configured.plugin
    if not 1 <= task.typical_load <= task.max_load:
        raise Violation(f"typical_load in 1..{task.max_load}", f"{task.typical_load}", "keep it within max_load")
    for load in (1, task.max_load):
        small_problem(task, load)
    for load in (0, task.max_load + 1):
        try:
            task.problem(load, max(load, 1), torch.Generator())
        except LoadOutOfRange:
            continue
        raise Violation(
            f"LoadOutOfRange at a load of {load}",
            "a problem",
            "if not 1 <= load <= self.max_load: raise LoadOutOfRange('…')",
        )


def deterministic(subject: Subject) -> None:
    """Equally seeded generators give the same problem, and another seed gives another problem."""
    task: Task = subject.configured.plugin
    first, again, other = (_tensors(small_problem(task, seed=seed)) for seed in (0, 0, 1))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        raise Violation(
            "equal problems from equal generators",
            "two problems differ",
            "pass generator=generator to every random call in problem",
        )
    if all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True)):
        raise Violation(
            "different facts from different seeds",
            "the same problem from seeds 0 and 1",
            "draw from the generator passed in: one created inside problem gives every seed the same facts",
        )


def no_global_randomness(subject: Subject) -> None:
    """problem draws only from the generator passed in; loss, metrics and examine draw nothing."""
    task: Task = subject.configured.plugin
    problem, outputs = _problem_and_outputs(task)
    refuse_global_changes(lambda: small_problem(task))
    refuse_global_changes(lambda: (task.loss(outputs, problem), task.metrics(outputs, problem), task.examine(problem)))


def facts_do_not_depend_on_slots(subject: Subject) -> None:
    """The facts depend on the load and the generator, not on the number of slots."""
    task: Task = subject.configured.plugin
    slot_counts = {6, 8, task.signature.n_combinations} - {0}
    load = min(6, task.max_load)
    facts = [_facts(small_problem(task, load, max(slots, load)), task) for slots in sorted(slot_counts)]
    if any(other != facts[0] for other in facts):
        raise Violation(
            f"the same {load} facts with any number of slots",
            f"different facts with {sorted(slot_counts)} slots",
            "draw all random numbers, in a fixed order, before using slots; then pad with masked slots",
        )


def grid_order(subject: Subject) -> None:
    """With as many slots as token combinations, the inputs are in the order of Lookup.grid()."""
    task: Task = subject.configured.plugin
    if not (isinstance(task.signature, Lookup) and task.signature.n_combinations):
        raise DoesNotApply("not a lookup task whose inputs can be counted")
    problem = small_problem(task, slots=task.signature.n_combinations)
    if not torch.equal(problem.inputs[0], task.signature.grid()):
        raise Violation(
            "inputs equal to signature.grid()",
            "another order",
            "if slots == signature.n_combinations, return signature.grid() and mask the slots that hold no fact",
        )


def loss_ignores_masked_slots(subject: Subject) -> None:
    """The loss is a finite 0-d tensor with finite gradients and ignores masked slots."""
    task: Task = subject.configured.plugin
    problem, outputs = _problem_and_outputs(task)
    loss = task.loss(outputs.requires_grad_(), problem)
    if loss.dim() or not loss.isfinite():
        raise Violation(
            "a finite 0-d loss", f"shape {tuple(loss.shape)}, {loss}", "take .sum() and divide by problem.mask.sum()"
        )
    (gradient,) = torch.autograd.grad(loss, outputs)
    if not gradient.isfinite().all():
        raise Violation("finite gradients of the loss", "NaN or infinity", "use logsumexp, softplus and clamp(min=…)")
    masked = problem.mask == 0
    if masked.any() and gradient[masked].any():
        raise Violation(
            "no gradient from masked slots", "they change the loss", "(problem.mask * loss).sum() / problem.mask.sum()"
        )


def metrics_in_range(subject: Subject) -> None:
    """metrics returns finite 0-d tensors, the criterion's metric among them; bits, where given, are at least 0."""
    task: Task = subject.configured.plugin
    problem, outputs = _problem_and_outputs(task)
    found = task.metrics(outputs, problem)
    if task.criterion.metric not in found:
        raise Violation(f"the criterion's metric, {task.criterion.metric}", f"{sorted(found)}", "add it to metrics")
    for name, value in found.items():
        if value.dim() or not value.isfinite():
            raise Violation(
                f"{name}: 0-d, finite", f"{value}", "divide sums by problem.mask.sum(); keep logarithms away from 0"
            )
    if BITS in found and found[BITS] < 0:
        raise Violation(f"{BITS}: at least 0", f"{found[BITS]}", "clamp them at 0")


def right_answers_hold(subject: Subject) -> None:
    """Outputs that answer every fact correctly meet the criterion."""
    task: Task = subject.configured.plugin
    problem = small_problem(task)
    outputs = _right_answers(task.signature, problem)
    if outputs is None:
        raise DoesNotApply("the right outputs cannot be derived from the targets")
    value = float(task.metrics(outputs, problem)[task.criterion.metric])
    if not task.criterion.is_met(value):
        raise Violation(
            f"{task.criterion} for correct outputs", f"{value:g}", "check the metric, its threshold and at_least"
        )


def batches_by_vmap(subject: Subject) -> None:
    """Loss and metrics work under vmap: no branch on tensor values."""
    check_batching(subject.one_setup_per_family())


def independent_of_other_models(subject: Subject) -> None:
    """A model trains to the same weights alone and in a group, up to rounding."""
    check_lane_independence(subject.one_setup_per_family())


def keeps_to_the_device(subject: Subject) -> None:
    """All tensors are on the inputs' device: one left on the CPU raises when the rest is on the `meta` device."""
    check_single_device(subject.one_setup_per_family())


def compiles(subject: Subject) -> str:
    """The training step can be compiled and updates the weights as the eager step does."""
    return check_compiled_step(subject)


CHECKS: tuple[Check[Subject], ...] = (
    shapes,
    values_in_range,
    loads,
    deterministic,
    no_global_randomness,
    facts_do_not_depend_on_slots,
    grid_order,
    loss_ignores_masked_slots,
    metrics_in_range,
    right_answers_hold,
    batches_by_vmap,
    keeps_to_the_device,
    independent_of_other_models,
    compiles,
)


def _problem_and_outputs(task: Task) -> tuple[Problem, Tensor]:
    """A problem and random outputs for it."""
    problem = small_problem(task)
    shape = output_shape(task.signature, problem)
    return problem, torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _tensors(problem: Problem) -> tuple[Tensor, ...]:
    return (*problem.inputs, problem.targets, problem.mask)


def _parts(task: Task, problem: Problem) -> dict[str, tuple[str, str]]:
    """The actual and the expected shape of each part of a problem."""
    signature, slots = task.signature, len(problem.mask)
    inputs = [f"{tuple(t.shape)} {t.dtype}" for t in problem.inputs]
    dtype = torch.int64 if signature.takes_tokens else torch.float32
    expected = [f"{shape} {dtype}" for shape in signature.input_shapes(slots)]
    rows = str(slots if signature.has_slots else signature.input_shapes(slots)[0][0])
    return {
        "inputs": (", ".join(inputs), ", ".join(expected)),
        "rows of targets": (str(len(problem.targets)), rows),
        "rows of the mask": (str(len(problem.mask)), rows),
    }


def _refuse_outside(name: str, values: Tensor, start: int, stop: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < start or high >= stop:
        raise Violation(f"{name} from {start} to {stop - 1}", f"{low} to {high}", "make them agree with the signature")


def _facts(problem: Problem, task: Task) -> list[tuple[object, ...]]:
    """The facts of a problem as a sorted list, independent of their slots."""
    if not task.signature.has_slots:
        return [tuple(tensor.flatten().tolist()) for tensor in _tensors(problem)]
    slots = len(problem.mask)
    columns = [t.expand(slots, *t.shape[1:]).reshape(slots, -1) for t in (*problem.inputs, problem.targets)]
    rows = torch.cat([column.double() for column in columns], dim=1)
    return sorted(tuple(row) for row in rows[problem.mask > 0].tolist())


def _right_answers(signature: Signature, problem: Problem) -> Tensor | None:
    """Outputs that hold every fact; None if targets are neither classes, edges, values nor distributions."""
    targets = problem.targets
    if isinstance(signature, Relation):
        return CERTAIN_LOGIT * (2 * targets - 1)
    if not targets.is_floating_point() and targets.dim() == 1:
        return CERTAIN_LOGIT * F.one_hot(targets, signature.n_classes).to(problem.mask.dtype)
    if signature.n_classes == 1:
        return targets.reshape(-1, 1)
    if targets.shape == (len(problem.mask), signature.n_classes):
        return torch.log(targets.clamp(min=1e-30))
    return None
