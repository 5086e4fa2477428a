"""Rules for gradient solvers: updates in place, row by row, the same every time."""

from __future__ import annotations

import torch
from torch import Tensor

from capbench.conformance.compiled import compiled_step
from capbench.conformance.exercise import exercise, without_traces
from capbench.conformance.lanes import unaffected_by_company
from capbench.conformance.outcome import Check, Violation, brief
from capbench.conformance.subject import Subject
from capbench.solver import GradientSolver

STEPS, N_LANES, N_PARAMETERS = 60, 5, 7


def state_has_lanes(subject: Subject) -> None:
    """Every tensor of the state has a leading axis of lanes, so that finished lanes can leave."""
    state = subject.configured.plugin.init(_start())
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) != N_LANES:
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise Violation(
                f"state[{name!r}] with {N_LANES} rows for {N_LANES} lanes", f"{shape}", "torch.zeros_like(weights)"
            )


def updates_in_place(subject: Subject) -> None:
    """update changes weights and state in place and leaves the gradient alone."""
    solver: GradientSolver = subject.configured.plugin
    weights, gradient = _start(), 2 * _start()
    before, state = weights.clone(), solver.init(weights)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    solver.update(weights, gradient, state, _rates(), torch.zeros(()), STEPS)
    if torch.equal(weights, before):
        fix = "weights.sub_(…) instead of weights = weights - …"
        raise Violation("weights changed in place", "weights that did not move", fix)
    if not torch.equal(gradient, 2 * before):
        raise Violation("the gradient as it was", "it was changed", "write to the state, not to the gradient")
    if {n: t.shape for n, t in state.items()} != shapes:
        raise Violation("a state that keeps its names and shapes", "it changed", "update the state's tensors in place")


def descends(subject: Subject) -> None:
    """On a bowl, weights come closer to its bottom and stay finite."""
    end = _descended(subject.configured.plugin, _start())
    if not end.isfinite().all() or not end.norm() < _start().norm():
        raise Violation(
            f"|w| below {_start().norm():.3g} after {STEPS} steps on |w|²",
            f"{end.norm():.3g}",
            "step against the gradient, and mind the sign of the update",
        )


def lanes_do_not_meet(subject: Subject) -> None:
    """A lane moves the same beside any others; NaN in one does not reach another."""
    solver: GradientSolver = subject.configured.plugin
    together, pair = _descended(solver, _start()), _descended(solver, _start()[1:3])
    spoilt = _start()
    spoilt[0] = torch.nan
    beside_nan = _descended(solver, spoilt)
    if not (torch.equal(together[1:3], pair) and torch.equal(together[1:], beside_nan[1:])):
        raise Violation(
            "each lane unmoved by what others hold",
            "a lane's weights depend on its company",
            "reduce over dim=1 only, with keepdim=True: norms, means and clipping are a lane's own",
        )


def deterministic(subject: Subject) -> None:
    """The same gradients give the same weights."""
    solver: GradientSolver = subject.configured.plugin
    if not torch.equal(_descended(solver, _start()), _descended(solver, _start())):
        raise Violation(
            "equal weights from equal gradients", "they differ", "keep all memory in the state, none in self"
        )


def no_global_randomness(subject: Subject) -> None:
    """init and update draw no random numbers."""
    without_traces(lambda: exercise(subject))


def keeps_to_the_device(subject: Subject) -> None:
    """All tensors stay on the device of the weights, and the number of the step is not branched on."""
    solver: GradientSolver = subject.configured.plugin
    weights = _start().to("meta")
    try:
        state = solver.init(weights)
        solver.update(weights, weights.clone(), state, _rates().to("meta"), torch.zeros((), device="meta"), STEPS)
    except Exception as error:
        raise Violation(
            "all tensors on the weights' device, and no branch on a tensor",
            brief(error),
            "torch.zeros_like(weights), or device=weights.device; step is a tensor: torch.where instead of if",
        ) from error


def independent_of_company(subject: Subject) -> None:
    """A model trains to the same bits alone and beside others."""
    unaffected_by_company(subject.one_a_task())


def compiles(subject: Subject) -> str:
    """The training step can be compiled, and moves the weights as the eager one does."""
    return compiled_step(subject)


CHECKS: tuple[Check[Subject], ...] = (
    state_has_lanes,
    updates_in_place,
    descends,
    lanes_do_not_meet,
    deterministic,
    no_global_randomness,
    keeps_to_the_device,
    independent_of_company,
    compiles,
)


def _start() -> Tensor:
    return torch.linspace(-2.0, 2.0, N_LANES * N_PARAMETERS).view(N_LANES, N_PARAMETERS)


def _rates(n_lanes: int = N_LANES) -> Tensor:
    return torch.full((n_lanes, 1), 0.03)


def _descended(solver: GradientSolver, weights: Tensor) -> Tensor:
    """Where weights end after some steps down |w|²."""
    weights = weights.clone()
    state = solver.init(weights)
    for step in range(STEPS):
        solver.update(weights, 2 * weights, state, _rates(len(weights)), torch.tensor(float(step)), STEPS)
    return weights
