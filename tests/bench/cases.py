"""What is timed: a training step of many models together, and the loop that a careful researcher writes for one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from machine import Work, step_work
from torch import Tensor, nn

from capbench import Architecture, Task
from capbench.engine.codegen.source import LANES
from capbench.engine.lane_program import find_program
from capbench.engine.lanes import LaneTraining
from capbench.engine.stack import Batched, build_stack, make_module, make_problem
from capbench.engine.step import Step
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.aot import Aot
from capbench_plugins.mha import Mha
from capbench_tasks.bigrams import Bigrams
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences
from capbench_tasks.triples import Triples


@dataclass(frozen=True)
class Case:
    name: str
    task: Task
    architecture: Architecture
    load: int
    n_models: int

    def setup(self) -> Setup:
        origin = Provenance("bench", "bench", "0", "bench")
        plugins = (Configured(p, origin, "-") for p in (self.task, self.architecture, Adam()))
        return Setup(*plugins, Training(self.task.criterion, 1000))


CASES = [
    *(
        Case(
            f"bigrams N=50, d=d_h=10, H={H}, 5 models",
            Bigrams(n_tokens=50),
            Aot(d_model=10, n_heads=H, d_qk=10, d_vo=10),
            2500,
            5,
        )
        for H in (11, 31)
    ),
    Case("triples 20x20x20, d=8, H=2, 128 models", Triples(), Aot(positions=False), 200, 128),
    Case("rgr m=64, d=16, h=4, 64 models", Rgr(), Mha(), 200, 64),
    Case(
        "sequences d=64, n=32, H=20, shared, 8 models",
        Sequences(d_input=64, n_context=32, n_classes=100, shared_context=True, n_examples=1024),
        Mha(n_heads=20, d_qk=64, d_vo=1),
        512,
        8,
    ),
]  # fmt: skip


class TokenByToken(nn.Module):
    """`aot` as one writes it for a single model: every fact's tokens are projected, only the last row attends."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.m = module

    def forward(self, tokens: Tensor) -> Tensor:
        m = self.m
        x = m.W_E[tokens] if m.P is None else m.W_E[tokens] + m.P  # (facts, 2, d)
        q = torch.einsum("fd,hdk->hfk", x[:, -1], m.W_Q) / math.sqrt(m.W_Q.shape[-1])
        k, v = (torch.einsum("fsd,hdk->hfsk", x, W) for W in (m.W_K, m.W_V))
        a = torch.softmax(torch.einsum("hfk,hfsk->hfs", q, k), dim=-1)
        z = torch.einsum("hfs,hfsv->hfv", a, v)
        return (x[:, -1] + torch.einsum("hfv,hvd->fd", z, m.W_O)) @ m.W_U


class SelfAttention(nn.Module):
    """`mha` on sequences as one writes it for a single model: the context is projected for every example."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.m = module

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        m = self.m
        contexts = contexts.expand(len(queries), -1, -1)  # (examples, n, d)
        q = torch.einsum("td,hdk->thk", queries, m.W_Q) / math.sqrt(m.W_Q.shape[-1])
        k, v = (torch.einsum("tnd,hdk->thnk", contexts, W) for W in (m.W_K, m.W_V))
        a = torch.softmax(torch.einsum("thk,thnk->thn", q, k), dim=-1)
        return torch.einsum("thn,thnv,hvo->to", a, v, m.W_O)


class PlainLoop:
    """One model as a careful researcher trains it: the facts asked for and no padding, torch's own Adam, the schedule.

    `as_textbook` writes the forward pass as papers do; otherwise the architecture's own module is called.
    """

    def __init__(self, setup: Setup, trial: TrialSpec, as_textbook: bool = False) -> None:
        solver = setup.solver.plugin
        assert isinstance(solver, Adam)
        self._task, self._metric = setup.task.plugin, setup.training.criterion.metric
        self._problem, module = make_problem(setup, trial, trial.load), make_module(setup, trial)
        self._model = textbook_model(setup, module) if as_textbook else module
        self._optimiser = torch.optim.Adam(
            module.parameters(), lr=trial.learning_rate, betas=(solver.beta1, solver.beta2), eps=solver.epsilon
        )
        steps = setup.training.steps
        shares = solver.schedule(torch.arange(steps, dtype=torch.float64), torch.tensor(float(steps)))
        self._rates = (trial.learning_rate * shares).tolist()
        self._n_taken = 0

    def step(self) -> None:
        """Forward, loss, backward and update."""
        self._optimiser.param_groups[0]["lr"] = self._rates[self._n_taken]
        self._optimiser.zero_grad()
        self._task.loss(self._model(*self._problem.inputs), self._problem).backward()
        self._optimiser.step()
        self._n_taken += 1

    @torch.no_grad()
    def evaluate(self) -> float:
        """The criterion's metric at the present weights."""
        return self._task.metrics(self._model(*self._problem.inputs), self._problem)[self._metric].item()


def textbook_model(setup: Setup, module: nn.Module) -> nn.Module:
    """The forward pass of the architecture as one writes it for a single model."""
    if isinstance(setup.architecture.plugin, Aot):
        return TokenByToken(module)
    return SelfAttention(module) if isinstance(setup.task.plugin, Sequences) else module


def loop_step(case: Case) -> Callable[[], None]:
    """One step of one model: plain modules, torch's own Adam, every fact in the batch."""
    return PlainLoop(case.setup(), TrialSpec(case.load, 0, 0.01), as_textbook=True).step


def eager_step(case: Case) -> Callable[[], None]:
    """One step of all models of the case together."""
    setup = case.setup()
    trials = tuple(TrialSpec(case.load, seed, 0.01) for seed in range(case.n_models))
    stack, _ = build_stack(TrialGroup(setup, setup.slots(trials[0]), trials), torch.device("cpu"))
    number = torch.tensor(10.0, dtype=torch.float64)
    step, state = Step(Batched(setup, stack), setup), Adam().init(stack.weights)
    return lambda: step(stack, state, [number])


def compiled_step(case: Case, n_steps: int = 1) -> Callable[[], None]:
    """Steps of as many models as there are lanes."""
    setup = case.setup()
    trials = tuple(TrialSpec(case.load, seed, 0.01) for seed in range(LANES))
    group = TrialGroup(setup, setup.slots(trials[0]), trials)
    training = LaneTraining(group, find_program(group))
    training.refill(deque(trials))
    return lambda: training.take_steps(n_steps)


def case_work(case: Case) -> Work:
    """What one step of one model of a case computes and moves."""
    setup = case.setup()
    return step_work(setup, setup.slots(TrialSpec(case.load, 0, 0.01)))
