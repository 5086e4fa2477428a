"""What is timed: a training step of many models together, and the loop that a careful researcher writes for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capbench import Architecture, Task
from capbench.engine.compiling import Compiling
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.stack import Batched, build_stack, make_module, make_problem
from capbench.engine.step import Step
from capbench.provenance import Provenance
from capbench.settings import Configured
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

    def pair(self) -> Pair:
        origin = Provenance("bench", "bench", "0", "bench")
        plugins = (Configured(p, origin, "-") for p in (self.task, self.architecture, Adam()))
        return Pair(*plugins, Training(self.task.criterion, 1000))


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


def loop_step(case: Case) -> Callable[[], None]:
    """One step of one model: plain modules, torch's own Adam, every fact in the batch."""
    pair, trial = case.pair(), TrialSpec(case.load, 0, 0.01)
    problem, module = make_problem(pair, trial, case.load), make_module(pair, trial)
    model = TokenByToken(module) if isinstance(case.architecture, Aot) else module
    model = SelfAttention(module) if isinstance(case.task, Sequences) else model
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        case.task.loss(model(*problem.inputs), problem).backward()
        optimiser.step()

    return step


def engine_step(case: Case, compiling: Compiling) -> Callable[[], None]:
    """One step of all models of the case together."""
    pair, device = case.pair(), torch.device("cpu")
    trials = tuple(TrialSpec(case.load, seed, 0.01) for seed in range(case.n_models))
    group = LaneGroup(pair, pair.slots(trials[0]), trials)
    stack, _ = build_stack(group, device)
    solver, number = Adam(), torch.tensor(10.0, dtype=torch.float64)
    step, state = Step(Batched(pair, stack), solver, 1000, compiling.block(group, device)), solver.init(stack.weights)
    return lambda: step(stack, state, number)
