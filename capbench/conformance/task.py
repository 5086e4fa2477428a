"""Rules for tasks: problems from their generator alone, scores in range, and nothing counted that is masked."""

from __future__ import annotations

import torch
from torch import Tensor

from capbench.conformance.compiled import compiled_step
from capbench.conformance.exercise import without_traces
from capbench.conformance.lanes import on_one_device, together, unaffected_by_company
from capbench.conformance.outcome import Check, DoesNotApply, Violation
from capbench.conformance.right_answers import right_answers
from capbench.conformance.subject import Subject, output_shape, small_problem
from capbench.errors import LoadOutOfRange
from capbench.signatures import Lookup, Recall, Relation
from capbench.task import Problem, Task

SHARES = frozenset({"accuracy", "tau_accuracy", "f1"})
"""Metrics that are shares, from 0 to 1."""


def shapes(subject: Subject) -> None:
    """Inputs, targets and mask have the shapes and types that the signature names."""
    task: Task = subject.configured.plugin
    problem = small_problem(task)
    for part, (seen, expected) in _parts(task, problem).items():
        if seen != expected:
            raise Violation(
                f"{part}: {expected}", seen, f"see what {type(task.signature).__name__} promises: its docstring"
            )
    if not problem.mask.is_floating_point() or (problem.mask < 0).any() or not (problem.mask > 0).any():
        raise Violation(
            "a floating-point mask, 0 or more", f"{problem.mask.dtype}", "mask = torch.zeros(slots) and 1.0"
        )


def values_in_range(subject: Subject) -> None:
    """Tokens, targets and vectors lie in the ranges of the signature, and vectors are finite."""
    task: Task = subject.configured.plugin
    problem, signature = small_problem(task), task.signature
    if isinstance(signature, Lookup):
        for place, (start, stop) in enumerate(signature.spans):
            _refuse_outside(f"tokens at position {place}", problem.inputs[0][:, place], start, stop)
    elif not all(tensor.isfinite().all() for tensor in problem.inputs):
        raise Violation("finite vectors", "NaN or infinity", "keep divisions and logarithms away from 0")
    if not isinstance(signature, Relation) and not problem.targets.is_floating_point():
        _refuse_outside("targets", problem.targets, 0, signature.n_classes)


def loads(subject: Subject) -> None:
    """Every load from 1 to max_load makes a problem, and others raise LoadOutOfRange."""
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
    """The same generator gives the same problem, and another seed another problem."""
    task: Task = subject.configured.plugin
    first, again, other = (_tensors(small_problem(task, seed=seed)) for seed in (0, 0, 1))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        raise Violation(
            "equal problems from equal generators",
            "two problems differ",
            "give generator=generator to every random call in problem",
        )
    if all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True)):
        raise Violation(
            "other facts from another seed",
            "the same problem from seeds 0 and 1",
            "draw from the generator given: a generator made inside problem gives every seed the same facts",
        )


def no_global_randomness(subject: Subject) -> None:
    """problem, loss and metrics draw from the generator given and from nothing else."""
    task: Task = subject.configured.plugin
    problem, outputs = _scored(task)
    without_traces(lambda: small_problem(task))
    without_traces(lambda: (task.loss(outputs, problem), task.metrics(outputs, problem), task.examine(problem)))


def facts_do_not_depend_on_slots(subject: Subject) -> None:
    """The facts of a load and a generator are the same, however many slots there are."""
    task: Task = subject.configured.plugin
    rooms = {6, 8, *([task.signature.n_combinations] if isinstance(task.signature, Lookup) else [])}
    load = min(6, task.max_load)
    sets = [_facts(small_problem(task, load, max(room, load)), task) for room in sorted(rooms)]
    if any(facts != sets[0] for facts in sets):
        raise Violation(
            f"the same {load} facts with any number of slots",
            f"other facts with {sorted(rooms)} slots",
            "draw everything that is random before looking at slots, and in the same order; fill up with masked slots",
        )


def grid_order(subject: Subject) -> None:
    """With as many slots as token combinations, the facts stand in the order of Lookup.grid()."""
    task: Task = subject.configured.plugin
    if not isinstance(task.signature, Lookup):
        raise DoesNotApply("not a lookup task")
    problem = small_problem(task, slots=task.signature.n_combinations)
    if not torch.equal(problem.inputs[0], task.signature.grid()):
        raise Violation(
            "inputs equal to signature.grid()",
            "another order",
            "where slots == signature.n_combinations, return signature.grid() and mask the slots that hold no fact",
        )


def loss_ignores_masked_slots(subject: Subject) -> None:
    """The loss is a finite 0-d tensor with finite gradients, and masked slots do not count."""
    task: Task = subject.configured.plugin
    problem, outputs = _scored(task)
    loss = task.loss(outputs.requires_grad_(), problem)
    if loss.dim() or not loss.isfinite():
        raise Violation("a finite 0-d loss", f"shape {tuple(loss.shape)}, {loss}", "reduce by .sum() and divide")
    (gradient,) = torch.autograd.grad(loss, outputs)
    if not gradient.isfinite().all():
        raise Violation("finite gradients of the loss", "NaN or infinity", "use logsumexp, softplus and clamp(min=…)")
    masked = problem.mask == 0
    if masked.any() and gradient[masked].any():
        raise Violation(
            "no gradient from masked slots", "they change the loss", "(problem.mask * loss).sum() / problem.mask.sum()"
        )


def metrics_in_range(subject: Subject) -> None:
    """metrics gives the criterion's metric and bits, 0-d and finite, shares from 0 to 1 and bits not below 0."""
    task: Task = subject.configured.plugin
    problem, outputs = _scored(task)
    found = task.metrics(outputs, problem)
    missing = {task.criterion.metric, "bits"} - set(found)
    if missing:
        raise Violation("the criterion's metric and bits", f"no {', '.join(sorted(missing))}", "add them to metrics")
    for name, value in found.items():
        upper = 1.0 if name in SHARES else float("inf")
        if value.dim() or not value.isfinite() or not (name not in SHARES | {"bits"} or 0 <= float(value) <= upper):
            limits = "from 0 to 1" if name in SHARES else "0 or more" if name == "bits" else "finite"
            raise Violation(f"{name}: 0-d, {limits}", f"{value}", "divide by problem.mask.sum(); clamp bits at 0")


def right_answers_hold(subject: Subject) -> None:
    """Outputs that are plainly right meet the criterion."""
    task: Task = subject.configured.plugin
    problem = small_problem(task)
    outputs = right_answers(task.signature, problem)
    if outputs is None:
        raise DoesNotApply("the targets do not say what the right outputs are")
    value = float(task.metrics(outputs, problem)[task.criterion.metric])
    meets = value >= task.criterion.threshold if task.criterion.at_least else value <= task.criterion.threshold
    if not meets:
        raise Violation(
            f"{task.criterion} for right answers", f"{value:g}", "compare the metric, its threshold and at_least"
        )


def batches_by_vmap(subject: Subject) -> None:
    """Loss and metrics work under vmap: no branch on the values of tensors."""
    together(subject.pairs())


def independent_of_company(subject: Subject) -> None:
    """A model trains to the same bits alone and beside others."""
    unaffected_by_company(subject.pairs())


def keeps_to_the_device(subject: Subject) -> None:
    """Loss and metrics make no tensor on the CPU: on the `meta` device, a stray one raises."""
    on_one_device(subject.pairs())


def compiles(subject: Subject) -> str:
    """The training step can be compiled, and moves the weights as the eager one does."""
    return compiled_step(subject)


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
    independent_of_company,
    compiles,
)


def _scored(task: Task) -> tuple[Problem, Tensor]:
    """A problem and random outputs on it."""
    problem = small_problem(task)
    shape = output_shape(task.signature, problem)
    return problem, torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _tensors(problem: Problem) -> tuple[Tensor, ...]:
    return (*problem.inputs, problem.targets, problem.mask)


def _parts(task: Task, problem: Problem) -> dict[str, tuple[str, str]]:
    """Seen and expected shape of each part of a problem."""
    signature, slots = task.signature, len(problem.mask)
    inputs = [f"{tuple(t.shape)} {t.dtype}" for t in problem.inputs]
    if isinstance(signature, Lookup):
        expected = [f"{(slots, signature.length)} torch.int64"]
    elif isinstance(signature, Recall):
        n_contexts = 1 if signature.shared_context else slots
        shape = (n_contexts, signature.n_context, signature.d_input)
        expected = [f"{shape} torch.float32", f"{(slots, signature.d_input)} torch.float32"]
    else:
        expected = [f"{(signature.n_items, signature.d_item)} torch.float32"]
        slots = signature.n_items
    return {
        "inputs": (", ".join(inputs), ", ".join(expected)),
        "rows of targets": (str(len(problem.targets)), str(slots)),
        "rows of the mask": (str(len(problem.mask)), str(slots)),
    }


def _refuse_outside(what: str, values: Tensor, start: int, stop: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < start or high >= stop:
        raise Violation(f"{what} from {start} to {stop - 1}", f"{low} to {high}", "agree with the signature")


def _facts(problem: Problem, task: Task) -> list[tuple[object, ...]]:
    """The facts of a problem as a sorted list, whatever slots they stand in."""
    if isinstance(task.signature, Relation):
        return [tuple(tensor.flatten().tolist()) for tensor in _tensors(problem)]
    slots = len(problem.mask)
    columns = [t.expand(slots, *t.shape[1:]).reshape(slots, -1) for t in (*problem.inputs, problem.targets)]
    rows = torch.cat([column.double() for column in columns], dim=1)
    return sorted(tuple(row) for row in rows[problem.mask > 0].tolist())
