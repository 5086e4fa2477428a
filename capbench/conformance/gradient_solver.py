"""Rules for gradient solvers: updates in place, lane by lane, and deterministic."""

from __future__ import annotations

import torch
from torch import Tensor

from capbench.conformance.check import Check, Violation, summarize_error
from capbench.conformance.side_effects import refuse_global_changes
from capbench.conformance.subject import Subject, call_every_method
from capbench.conformance.training import check_compiled_step, check_lane_independence
from capbench.contract.solver import GradientSolver, Layout

STEPS, N_LANES, N_PARAMETERS = 60, 5, 7
LAYOUT: Layout = (("W", (2, 3)), ("b", (1,)))
"""The parameters under check, for solvers that ask for them."""


def state_has_lanes(subject: Subject) -> None:
    """Every tensor of the state has a leading lane axis, so that finished lanes can be removed."""
    state = _solver(subject).init(_start())
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) != N_LANES:
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise Violation(
                f"state[{name!r}] with {N_LANES} rows for {N_LANES} lanes",
                f"{shape}",
                "start from torch.zeros_like(weights)",
            )


def updates_in_place(subject: Subject) -> None:
    """update changes weights and state in place and does not change the gradient."""
    solver = _solver(subject)
    weights, gradient = _start(), 2 * _start()
    before, state = weights.clone(), solver.init(weights)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    solver.update(weights, gradient, state, _rates(), torch.zeros(()), _steps())
    if torch.equal(weights, before):
        fix = "use weights.sub_(…) instead of weights = weights - …"
        raise Violation("weights changed in place", "unchanged weights", fix)
    if not torch.equal(gradient, 2 * before):
        raise Violation("an unchanged gradient", "it was changed", "write to the state, not to the gradient")
    if {n: t.shape for n, t in state.items()} != shapes:
        raise Violation("a state that keeps its names and shapes", "it changed", "update the state's tensors in place")


def descends(subject: Subject) -> None:
    """Minimising |w|², the weights get smaller and stay finite."""
    end = _minimise(_solver(subject), _start())
    if not end.isfinite().all() or not end.norm() < _start().norm():
        raise Violation(
            f"|w| below {_start().norm():.3g} after {STEPS} steps on |w|²",
            f"{end.norm():.3g}",
            "step against the gradient: check the sign of the update",
        )


def lanes_are_independent(subject: Subject) -> None:
    """A lane's update does not depend on other lanes; NaN in one does not reach another."""
    solver = _solver(subject)
    all_lanes, two_lanes = _minimise(solver, _start()), _minimise(solver, _start()[1:3])
    start_with_nan = _start()
    start_with_nan[0] = torch.nan
    beside_nan = _minimise(solver, start_with_nan)
    if not (torch.equal(all_lanes[1:3], two_lanes) and torch.equal(all_lanes[1:], beside_nan[1:])):
        raise Violation(
            "lanes that do not depend on each other",
            "a lane's weights depend on the other lanes",
            "reduce only over dim=1, with keepdim=True: compute norms, means and clipping per lane",
        )


def deterministic(subject: Subject) -> None:
    """The same gradients give the same weights."""
    solver = _solver(subject)
    if not torch.equal(_minimise(solver, _start()), _minimise(solver, _start())):
        raise Violation(
            "equal weights from equal gradients",
            "they differ",
            "keep everything that update remembers in the state, nothing in self",
        )


def no_global_randomness(subject: Subject) -> None:
    """init and update draw no random numbers."""
    refuse_global_changes(lambda: call_every_method(subject))


def keeps_to_the_device(subject: Subject) -> None:
    """All tensors are on the device of the weights, and no branch depends on the step."""
    solver = _solver(subject)
    weights = _start().to("meta")
    try:
        state = solver.init(weights)
        solver.update(weights, weights.clone(), state, _rates().to("meta"), *torch.zeros(2, device="meta"))
    except Exception as error:
        raise Violation(
            "all tensors on the weights' device, and no branch on a tensor",
            summarize_error(error),
            "use torch.zeros_like(weights) or device=weights.device; step is a tensor: use torch.where instead of if",
        ) from error


def independent_of_other_models(subject: Subject) -> None:
    """A model trains to the same weights alone and in a group, up to rounding."""
    check_lane_independence(subject.one_setup_per_task())


def compiles(subject: Subject) -> str:
    """The training step can be compiled and updates the weights as the eager step does."""
    return check_compiled_step(subject)


CHECKS: tuple[Check[Subject], ...] = (
    state_has_lanes,
    updates_in_place,
    descends,
    lanes_are_independent,
    deterministic,
    no_global_randomness,
    keeps_to_the_device,
    independent_of_other_models,
    compiles,
)


def _solver(subject: Subject) -> GradientSolver:
    """The solver under check, which knows the layout if it asks for it."""
    solver: GradientSolver = subject.configured.plugin
    return solver.with_layout(LAYOUT) if solver.uses_layout else solver


def _start() -> Tensor:
    return torch.linspace(-2.0, 2.0, N_LANES * N_PARAMETERS).view(N_LANES, N_PARAMETERS)


def _steps() -> Tensor:
    return torch.tensor(float(STEPS))


def _rates(n_lanes: int = N_LANES) -> Tensor:
    return torch.full((n_lanes, 1), 0.03)


def _minimise(solver: GradientSolver, weights: Tensor) -> Tensor:
    """The weights after STEPS steps of minimising |w|²."""
    weights = weights.clone()
    state = solver.init(weights)
    for step in range(STEPS):
        solver.update(weights, 2 * weights, state, _rates(len(weights)), torch.tensor(float(step)), _steps())
    return weights
