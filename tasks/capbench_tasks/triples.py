"""Triples (key, query) -> value, stored by an attention layer that reads the sequence "k q".

Wong, "Paying Attention to Facts", arXiv 2502.05076.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Generator, Tensor

from capbench import (
    Criterion,
    LoadOutOfRange,
    Lookup,
    Problem,
    Recipe,
    Task,
    hookimpl,
)
from capbench_tasks.tensor_rank import (
    Database,
    argmax_tensor,
    cp_rank_estimate,
    database_tensor,
    distinct_values_bound,
    flattening_ranks,
    largest_query_slice_rank,
    slice_rank_bound,
    thresholded_softmax,
)

LAYER_RANK, DATABASE_RANK = "layer_rank_lower", "database_rank_lower"
"""Metrics that rank bounds are compared with: the largest flattening rank, a lower bound on the tensor rank.

Never facts: argmax and softmax can raise the rank without limit.
"""
SWEPT_TAUS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Confidence thresholds at which the database that a trained layer states is analysed."""
DENSE_CELLS = 2**17
"""Largest K * Q * V at which a database is stored as a dense tensor and its CP rank estimated."""


class Triples(Task):
    """Store a partial function (key, query) -> value. A fact is a triple.

    Except for `random`, the tensor rank of the databases is known exactly. diagonal: the load;
    low_rank: min(rank, load); block: min(rank, load), plus one where the load ends inside a
    block's second or later row, that is, where it exceeds rank * (n_queries // rank) and is not a
    multiple of n_queries // rank.
    """

    name: ClassVar[str] = "triples"
    fact: ClassVar[str] = "triple"
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"tau", "score"})
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.01, 0.02, 0.05), steps=1000)
    presets: ClassVar = {"smoke": {"n_keys": 8, "n_queries": 8, "n_values": 8}}

    n_keys: int = Field(20, ge=1, le=4096, description="|K|: tokens that may come first")
    n_queries: int = Field(20, ge=1, le=4096, description="|Q|: tokens that may come second, where the value is read")
    n_values: int = Field(20, ge=2, le=65536, description="|V|: possible answers")
    tau: float = Field(0.95, gt=0, lt=1, description="a triple counts in tau_accuracy where p(v | k, q) >= tau")
    score: Literal["accuracy", "tau_accuracy"] = Field(
        "accuracy", description="the criterion's metric; accuracy: the most likely value is right"
    )
    structure: Literal["random", "block", "diagonal", "low_rank"] = Field(
        "random",
        description="random: any pairs, uniform values; diagonal: no key or query twice, one value for all; "
        "block: groups of keys and queries, one value per group; low_rank: the value depends on the key alone",
    )
    rank: int = Field(4, ge=1, description="tensor rank of the databases, for block and low_rank")

    @model_validator(mode="after")
    def _rank_fits(self) -> Triples:
        least, most, rule = {
            "block": (1, min(self.n_keys, self.n_queries), "1 <= rank <= min(n_keys, n_queries)"),
            "low_rank": (2, min(self.n_keys, self.n_values), "2 <= rank <= min(n_keys, n_values)"),
        }.get(self.structure, (1, self.rank, ""))
        if not least <= self.rank <= most:
            raise ValueError(f"structure={self.structure} needs {rule} (here {most}), got {self.rank}; change rank")
        return self

    @property
    def criterion(self) -> Criterion:
        """99 % of the triples, by the chosen score."""
        return Criterion(self.score, 0.99)

    @property
    def signature(self) -> Lookup:
        """The sequence "k q": keys are the tokens below n_keys, queries those above."""
        n_tokens = self.n_keys + self.n_queries
        return Lookup(n_tokens, 2, self.n_values, ((0, self.n_keys), (self.n_keys, n_tokens)))

    @property
    def max_load(self) -> int:
        """The largest number of triples that fits the structure."""
        if self.structure == "diagonal":
            return min(self.n_keys, self.n_queries)
        if self.structure == "block":
            return self.rank * (self.n_keys // self.rank) * self._row_width
        return self.n_keys * self.n_queries

    @property
    def typical_load(self) -> int:
        """A quarter of all pairs, or as many as the structure allows."""
        return max(1, self.max_load // 4) if self.structure == "random" else self.max_load

    @property
    def _row_width(self) -> int:
        """The largest number of queries per key, for block and low_rank."""
        return self.n_queries // self.rank if self.structure == "block" else self.n_queries

    def known_rank(self, load: int) -> int | None:
        """The exact tensor rank of this structure's databases [derived]; None for `random`, where it varies."""
        if self.structure == "random":
            return None
        if self.structure == "diagonal":
            return load
        has_ragged_block = load > self.rank * self._row_width and load % self._row_width > 0
        return min(self.rank, load) + (self.structure == "block" and has_ragged_block)

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` triples with distinct (key, query); in grid order if the slots are the whole grid, else first."""
        if not 1 <= load <= min(self.max_load, slots):
            raise LoadOutOfRange(
                f"a {self.structure} database of these sizes has 1 to {self.max_load} triples in as many slots, "
                f"got {load} in {slots}; raise n_keys or n_queries"
            )
        keys, queries, values = self._triples(load, generator)
        if slots == self.signature.n_combinations:
            tokens, slot = self.signature.grid(), keys * self.n_queries + queries
        else:
            tokens, slot = torch.tensor([[0, self.n_keys]]).repeat(slots, 1), torch.arange(load)
            tokens[:load] = torch.stack([keys, self.n_keys + queries], dim=1)  # (slots, 2)
        targets = torch.zeros(slots, dtype=torch.int64).index_copy(0, slot, values)
        mask = torch.zeros(slots).index_fill(0, slot, 1.0)
        return Problem((tokens,), targets, mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy over the facts."""
        return -_mean_over_facts(_log_likelihood(outputs, problem), problem.mask)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of triples recalled, share recalled with confidence tau, and the bits stored."""
        log_p = _log_likelihood(outputs, problem)  # (slots,)
        is_right = outputs.argmax(dim=-1) == problem.targets
        bits = math.log2(self.n_values) + log_p / math.log(2)  # (slots,)
        return {
            "accuracy": _mean_over_facts(is_right.to(outputs.dtype), problem.mask),
            "tau_accuracy": _mean_over_facts((log_p >= math.log(self.tau)).to(outputs.dtype), problem.mask),
            "bits": torch.where(problem.mask > 0, bits, 0.0).sum().clamp(min=0.0),
        }

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Triples known beyond guessing, T0 (acc - 1/V) / (1 - 1/V); None unless values are uniform."""
        if self.structure != "random" or "accuracy" not in metrics:
            return None
        chance = 1 / self.n_values
        return max(0.0, load * (metrics["accuracy"] - chance) / (1 - chance))

    def examine(self, problem: Problem) -> dict[str, float]:
        """Lower and upper bounds on the tensor rank of this database."""
        database = self._database(problem)
        upper, lower = distinct_values_bound(database), len(torch.unique(database.values))
        if math.prod(database.shape) <= DENSE_CELLS:
            tensor = database_tensor(database)
            upper, lower = min(upper, slice_rank_bound(tensor)), max(flattening_ranks(tensor))
        return {"database_rank_lower": float(lower), "database_rank_upper": float(upper)}

    def analyse(self, outputs: Tensor, problem: Problem) -> dict[str, float]:
        """Numerical ranks of a trained layer's tensor L, and bounds on those of the databases read from it."""
        L = outputs.detach().cpu().reshape(self.n_keys, self.n_queries, -1)  # (K, Q, V)
        by_mode = flattening_ranks(L)
        found = {f"layer_rank_by_{mode}": float(r) for mode, r in zip(("key", "query", "value"), by_mode, strict=True)}
        found[LAYER_RANK] = float(max(by_mode))
        found["layer_rank_at_a_query"] = float(largest_query_slice_rank(L))
        stated = {f"tau_{tau:g}": thresholded_softmax(L, tau) for tau in SWEPT_TAUS}
        facts = self._database(problem)
        for name, confident in stated.items():
            found[f"{name}_accuracy"] = float(confident[facts.keys, facts.queries, facts.values].mean())
        for readout, database in {"argmax": argmax_tensor(L), **stated}.items():
            found[f"{readout}_rank_lower"] = float(max(flattening_ranks(database)))
            found[f"{readout}_rank_upper"] = float(slice_rank_bound(database))
        if L.numel() <= DENSE_CELLS:
            generator = torch.Generator().manual_seed(0)
            found["layer_cp_rank_estimate"] = float(cp_rank_estimate(L, generator, starts=2, at_least=max(by_mode)))
        return found

    def _database(self, problem: Problem) -> Database:
        """The facts of a problem, as indices."""
        is_fact = problem.mask > 0
        tokens = problem.inputs[0][is_fact]  # (load, 2)
        shape = (self.n_keys, self.n_queries, self.n_values)
        return Database(tokens[:, 0], tokens[:, 1] - self.n_keys, problem.targets[is_fact], shape)

    def _triples(self, load: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, queries and values of `load` triples, each (load,)."""
        if self.structure in ("block", "low_rank"):
            return self._grouped_triples(load, generator)
        if self.structure == "diagonal":
            keys = torch.randperm(self.n_keys, generator=generator)[:load]
            queries = torch.randperm(self.n_queries, generator=generator)[:load]
            return keys, queries, torch.randint(self.n_values, (1,), generator=generator).expand(load)
        pair = torch.randperm(self.n_keys * self.n_queries, generator=generator)[:load]
        values = torch.randint(self.n_values, (load,), generator=generator)
        return pair // self.n_queries, pair % self.n_queries, values

    def _grouped_triples(self, load: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Triples row by row; a row is one key with several queries, all with the value of its group."""
        widths, groups = self._rows(load)
        row = torch.arange(len(widths)).repeat_interleave(widths)  # (load,)
        within = torch.arange(load) - (widths.cumsum(0) - widths)[row]  # (load,): 0, 1, ... along each row
        keys = torch.randperm(self.n_keys, generator=generator)
        queries = torch.randperm(self.n_queries, generator=generator)
        if self.structure == "block":  # groups share neither keys nor queries, so they may share values
            values = torch.randint(self.n_values, (self.rank,), generator=generator)
            first = groups * self._row_width
        else:  # keys share queries, so only distinct values keep the groups independent
            values = torch.randperm(self.n_values, generator=generator)[: self.rank]
            first = torch.randint(self.n_queries, (len(widths),), generator=generator)
        return keys[row], queries[(first[row] + within) % self.n_queries], values[groups[row]]

    def _rows(self, load: int) -> tuple[Tensor, Tensor]:
        """Queries per row, and the group of each row; rows of a group are equally long, except a ragged last one."""
        full, rest = divmod(load, self._row_width)
        if full < self.rank:  # one row per group, as equal as possible
            group = torch.arange(self.rank)
            return load // self.rank + (group < load % self.rank), group
        rows = torch.arange(full + (rest > 0))
        widths = torch.where(rows < full, self._row_width, rest)
        if self.structure == "low_rank" and rest > 0:  # the ragged row has the last value to itself
            return widths, torch.where(rows < full, rows % (self.rank - 1), self.rank - 1)
        return widths, rows % self.rank


def _log_likelihood(outputs: Tensor, problem: Problem) -> Tensor:
    """Log-probability of each slot's target, (slots,)."""
    return -F.cross_entropy(outputs, problem.targets, reduction="none")


def _mean_over_facts(values: Tensor, mask: Tensor) -> Tensor:
    return (mask * values).sum() / mask.sum()


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Triples."""
    return [Triples]
