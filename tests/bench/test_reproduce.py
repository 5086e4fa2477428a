"""A row of a published table: the recipe from an empty store, against the authors' way of one model at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capbench.executors.worker_pool import pool_size
from capbench.measure.protocols import protocol_named
from capbench.registry.registry import load_registry
from capbench.store.store import Store
from capbench.studies.reproduce.recipe import PaperRecipe, load_recipe
from capbench.studies.reproduce.reproduce import reproduce

RECIPE, ROW = "dana2025-heads", "d10"
N, D, BATCH = 50, 10, 256
SAMPLED_STEPS = 40
"""Steps of each head count that the loop really takes, half before and half after the row; the rest is multiplied."""


class Quiet:
    run = property(lambda self: self)

    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...
    def started(self, *_: object) -> None: ...
    def finished(self, *_: object) -> None: ...


class OneModel(nn.Module):
    """The model as the authors describe theirs: a full attention module a head, causal, summed with the embedding."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Linear(D, N, bias=False), nn.Linear(D, 2, bias=False)
        heads = (nn.MultiheadAttention(D, 1, bias=False, batch_first=True) for _ in range(n_heads))
        self.heads = nn.ModuleList(heads)
        self.unembed = nn.Linear(D, N, bias=False)

    def forward(self, setups: Tensor) -> Tensor:
        embedded = self.tokens.weight[setups]  # (batch, 2, d)
        x = embedded + self.positions.weight
        later = torch.ones(2, 2).triu(1) == 1
        attended = sum(head(x, x, x, attn_mask=later)[0] for head in self.heads)
        return self.unembed(embedded + attended)  # (batch, 2, N)


def loop(n_heads: int) -> Callable[[], None]:
    """Some steps of one model: a batch, its loss and its accuracy, torch's own Adam."""
    torch.manual_seed(0)
    model = OneModel(n_heads)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    facts = torch.randint(N, (16_384, 3))
    batches = itertools.cycle(facts.split(BATCH))

    def steps() -> None:
        for batch in itertools.islice(batches, SAMPLED_STEPS // 2):
            logits = model(batch[:, :2])[:, 1]
            loss = F.cross_entropy(logits, batch[:, 2])
            (logits.argmax(dim=-1) == batch[:, 2]).float().mean().item()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            loss.item()

    return steps


def row() -> PaperRecipe:
    """The recipe with that row of it alone."""
    recipe = load_recipe(RECIPE)
    return recipe.model_copy(
        update={"sweeps": tuple(sweep for sweep in recipe.sweeps if sweep.id == ROW), "claims": (), "figures": ()}
    )


HEADS = row().sweeps[0].grid["arch.n_heads"]


def time_loop(benchmark, n_heads: int) -> None:
    """First of all and last of all: the machine may have become slower or faster meanwhile."""
    benchmark.group = "published row"
    benchmark.extra_info.update(variant="loop", heads=n_heads, steps=SAMPLED_STEPS // 2)
    benchmark.pedantic(loop(n_heads), rounds=1, warmup_rounds=1)


@pytest.mark.parametrize("n_heads", HEADS)
def test_loop(benchmark, n_heads: int) -> None:
    time_loop(benchmark, n_heads)


def time_row(benchmark, folder: Path, variant: str) -> None:
    registry, store, sweep = load_registry(), Store(folder), row().sweeps[0]
    benchmark.group = "published row"

    def run() -> None:
        (data,) = reproduce([row()], "standard", registry, store, Quiet(), lambda o: o.replaced(device="cpu"))
        assert not data.failures()

    benchmark.pedantic(run, rounds=1)
    models, steps = len(HEADS) * (sweep.seeds or 1), protocol_named(sweep.protocol).steps
    benchmark.extra_info.update(
        variant=variant,
        models=models,
        steps=steps,
        seeds=sweep.seeds,
        processes=pool_size(len(HEADS), torch.device("cpu")),
        threads=torch.get_num_threads(),
    )


def test_row(benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    time_row(benchmark, tmp_path, "row")


def test_row_in_one_process(benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    time_row(benchmark, tmp_path, "row, one process")


@pytest.mark.parametrize("n_heads", HEADS)
def test_loop_again(benchmark, n_heads: int) -> None:
    time_loop(benchmark, n_heads)
