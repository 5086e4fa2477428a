"""The gradient solvers: each is the method of its paper, on a stack of models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from capbench import GradientSolver, Lookup
from capbench.engine.trials import Setup, Training
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure
from capbench.testing import Conformance
from capbench_plugins.adam import Adam
from capbench_plugins.adamw import AdamW
from capbench_plugins.lbfgs import Lbfgs
from capbench_plugins.muon import Muon, is_matrix, orthogonalise
from capbench_plugins.rwkv7 import Rwkv7
from capbench_plugins.sgd import Sgd

LAYOUT = (("W", (3, 4)), ("b", (4,)))


class TestAdamW(Conformance):
    plugin = AdamW


class TestSgd(Conformance):
    plugin = Sgd


class TestMuon(Conformance):
    plugin = Muon


class TestLbfgs(Conformance):
    plugin = Lbfgs


def minimise(solver: GradientSolver, curvature: Tensor, rate: float, steps: int) -> Tensor:
    """The weights of two lanes after minimising Σ c w² / 2 from different starts."""
    weights = torch.stack([torch.ones(len(curvature)), torch.linspace(-1, 1, len(curvature))])
    state = solver.init(weights)
    for step in range(steps):
        number = torch.tensor([step, steps], dtype=torch.float32)
        solver.update(weights, curvature * weights, state, torch.full((2, 1), rate), *number)
    return weights


@pytest.mark.parametrize(
    ("solver", "optimiser"),
    [
        (AdamW(decay="constant", weight_decay=0.1), lambda w: torch.optim.AdamW(w, lr=0.05, weight_decay=0.1)),
        (Sgd(decay="constant"), lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9)),
        (Sgd(decay="constant", nesterov=True), lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9, nesterov=True)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_lane_takes_the_steps_of_torch(solver, optimiser) -> None:
    curvature = torch.linspace(0.1, 2, 6)
    w = nn.Parameter(torch.ones(6))
    single = optimiser([w])
    for _ in range(20):
        w.grad = curvature * w.detach()
        single.step()
    torch.testing.assert_close(minimise(solver, curvature, 0.05, 20)[0], w.detach(), rtol=1e-4, atol=1e-5)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    G = torch.randn(5, 6, 20, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(G, 5, 1e-8))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_matrices_step_by_muon_and_vectors_by_adam() -> None:
    g = torch.Generator().manual_seed(0)
    weights, gradient = torch.zeros(2, 16), torch.randn(2, 16, generator=g)
    solver = Muon(decay="constant").with_layout(LAYOUT)
    rate, numbers = torch.ones(2, 1), (torch.zeros(()), torch.ones(()))
    solver.update(weights, gradient, solver.init(weights), rate, *numbers)
    step = -weights[:, :12].view(2, 3, 4)
    values = torch.linalg.svdvals(step) / (0.2 * 2)
    assert values.min() > 0.5
    assert values.max() < 1.4
    alone = torch.zeros(2, 4)
    Adam(decay="constant").update(alone, gradient[:, 12:], Adam().init(alone), rate, *numbers)
    torch.testing.assert_close(weights[:, 12:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape", "is_one"),
    [
        ("blocks.0.layer.W_Q", (2, 16, 8), True),
        ("blocks.0.layer.cell.weight_ih", (48, 16), True),
        ("maps.0", (2, 3), False),
        ("blocks.0.layer.b_w", (2, 8), False),
        ("blocks.0.layer.shift.3", (2, 8), False),
        ("blocks.0.layer.A", (2, 1), False),
        ("W_E.0", (9, 16), True),
        ("norm.weight", (16,), False),
    ],
)
def test_gains_and_biases_with_an_axis_of_heads_are_no_matrices(
    name: str, shape: tuple[int, ...], is_one: bool
) -> None:
    assert is_matrix(name, shape) is is_one


def test_every_gain_and_bias_of_rwkv7_steps_by_adam() -> None:
    module = Rwkv7().build(Lookup(8, 4, 4))
    layout = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    matrices = {name.rpartition(".")[2] for name, shape in layout if is_matrix(name, shape)}
    assert matrices == {"W_E", "P", "W_U", "W_Q", "W_K", "W_V", "W_O", "W_w", "W_a"}


def test_without_a_layout_all_weights_are_vectors() -> None:
    assert Muon().layout == ()
    assert minimise(Muon(), torch.ones(6), 0.05, 60).abs().max() < 0.2


def test_a_setup_shows_the_solver_the_parameters_of_the_module() -> None:
    registry = load_registry()
    task = configure(registry.task("bigrams"), "smoke", {})
    aot = configure(registry.architecture("aot"), "smoke", {})
    solvers = {name: configure(registry.solver(name), "smoke", {}) for name in ("muon", "adam")}
    shown = {
        name: Setup(task, aot, solver, Training(task.plugin.criterion, 10)).solver.plugin.layout
        for name, solver in solvers.items()
    }
    module = aot.plugin.build(task.plugin.signature)
    assert shown["muon"] == tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    assert shown["adam"] == ()


def test_curvature_makes_a_badly_scaled_bowl_round() -> None:
    curvature = torch.logspace(-3, 1, 12)
    ends = {
        solver.name: minimise(solver, curvature, 0.3, 60) for solver in (Lbfgs(decay="constant", history=16), Adam())
    }
    losses = {name: (curvature * w.square()).sum(dim=1).max() for name, w in ends.items()}
    assert losses["lbfgs"] < 0.1 * losses["adam"]


def test_lbfgs_stays_finite_where_the_weights_have_vanished() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 50, generator=generator)
    solver = Lbfgs()
    state = solver.init(weights)
    for step in range(60):
        solver.update(
            weights, 2 * weights, state, torch.full((4, 1), 0.1), torch.tensor(float(step)), torch.tensor(60.0)
        )
    assert weights.isfinite().all()
