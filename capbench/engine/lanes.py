"""Lane groups: which trials train together, and the key and seeds of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch

from capbench.architecture import Architecture
from capbench.protocols import Sampling
from capbench.settings import Configured
from capbench.signatures import Lookup, Relation
from capbench.solver import Solver
from capbench.task import Criterion, Task

ENGINE_VERSION = 1
"""Part of every key: raised when the engine's numbers change."""
GRID_PAYS = 8
"""The grid is scored whole once this many times the facts would fill it: a grid row costs far less than a fact."""


@dataclass(frozen=True)
class Training:
    """What decides a trial beside its plugins."""

    criterion: Criterion
    steps: int
    dtype: str = "float32"
    stops_early: bool = True
    """Whether a lane ends when it meets the criterion or stands still; False: it takes every step."""
    analyses: bool = False
    """Whether task and architecture analyse each model at its end."""
    sampling: Sampling | None = None
    """How batches are drawn; None: every step sees every fact."""


@dataclass(frozen=True)
class TrialSpec:
    """One trial of a pair: its load, its seed and its learning rate (None where nothing is trained)."""

    load: int
    seed: int
    learning_rate: float | None


@dataclass(frozen=True)
class Pair:
    """A task, an architecture and a solver, configured: all the trials of a group share them."""

    task: Configured[Task]
    architecture: Configured[Architecture]
    solver: Configured[Solver]
    training: Training

    @property
    def plugins(self) -> tuple[Configured[Task], Configured[Architecture], Configured[Solver]]:
        """Its three plugins."""
        return self.task, self.architecture, self.solver

    @cached_property
    def identity(self) -> str:
        """Canonical text of all that decides a trial but for its load, seed and rate."""
        parts = {
            "engine": ENGINE_VERSION,
            "task": _identity(self.task),
            "architecture": _identity(self.architecture),
            "solver": _identity(self.solver),
            "training": asdict(self.training),
        }
        return json.dumps(parts, sort_keys=True)

    def key(self, trial: TrialSpec) -> str:
        """Content address of a trial: same key, same trial."""
        own = {"learning_rate": trial.learning_rate, "load": trial.load, "seed": trial.seed}
        return _digest("trial", self.identity, json.dumps(own)).hex()[:32]

    def data_seed(self, trial: TrialSpec) -> int:
        """Seed of the facts: the same for every architecture, solver and learning rate."""
        task = self.task.plugin
        fields = task.model_dump_json(exclude=set(task.scoring_fields))
        return _seed("data", task.name, str(task.version), fields, str(trial.load), str(trial.seed))

    def batch_seed(self, trial: TrialSpec) -> int:
        """Seed of the batches: like the data, the same for every architecture and learning rate."""
        return _seed("batches", str(self.data_seed(trial)))

    def init_seed(self, trial: TrialSpec) -> int:
        """Seed of the initial weights: the same for every learning rate."""
        plugin = self.architecture.plugin
        return _seed(
            "init", plugin.name, str(plugin.version), plugin.model_dump_json(), str(trial.load), str(trial.seed)
        )

    def slots(self, trial: TrialSpec) -> int:
        """Room for facts, from the trial alone and never from its company, so that its sums stay the same.

        The next power of two; or all combinations where the module can score their grid in one go. A relation has
        the shape of its items whatever the load: all loads stack.
        """
        if isinstance(self.task.plugin.signature, Relation):
            return self.task.plugin.max_load
        room = 1 << (trial.load - 1).bit_length()
        if self.has_grid and room * GRID_PAYS >= self.n_combinations:
            return self.n_combinations
        return min(self.task.plugin.max_load, room)

    @cached_property
    def n_combinations(self) -> int:
        """Different inputs of a lookup task; 0 for other tasks."""
        signature = self.task.plugin.signature
        return signature.n_combinations if isinstance(signature, Lookup) else 0

    @cached_property
    def has_grid(self) -> bool:
        """Whether the architecture's module scores a whole grid of inputs at once on this task."""
        if not self.n_combinations:
            return False
        with seeded(0):
            return hasattr(self.architecture.plugin.build(self.task.plugin.signature), "forward_grid")


@dataclass(frozen=True)
class LaneGroup:
    """Trials that stack: one pair, one number of slots."""

    pair: Pair
    slots: int
    trials: tuple[TrialSpec, ...]
    n_ahead: int = 0
    """Further trials of the same shape that the run may still ask for."""

    @cached_property
    def by_key(self) -> dict[str, TrialSpec]:
        """Its trials by their keys, which take a while to work out."""
        return {self.pair.key(trial): trial for trial in self.trials}

    @property
    def keys(self) -> set[str]:
        """The keys of its trials."""
        return set(self.by_key)

    def only(self, keys: Collection[str]) -> list[LaneGroup]:
        """The group with only the trials of these keys; no group where none is left."""
        trials = tuple(trial for key, trial in self.by_key.items() if key in keys)
        return [self.part(trials)] if trials else []

    def part(self, trials: tuple[TrialSpec, ...]) -> LaneGroup:
        """The same group with other trials."""
        return replace(self, trials=trials)

    def parts(self, size: int) -> list[LaneGroup]:
        """The group in parts of so many trials at most, in their order."""
        starts = range(0, len(self.trials), size)
        return [self.part(self.trials[start : start + size]) for start in starts]


def group_trials(work: Iterable[tuple[Pair, TrialSpec]], n_ahead: int = 0) -> list[LaneGroup]:
    """Trials of equal shape together, in the order given; `n_ahead` more may follow, of any of the shapes."""
    by_shape: dict[tuple[Pair, int], list[TrialSpec]] = {}
    for pair, trial in work:
        by_shape.setdefault((pair, pair.slots(trial)), []).append(trial)
    return [LaneGroup(pair, slots, tuple(same), n_ahead // len(by_shape)) for (pair, slots), same in by_shape.items()]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A scope in which torch's default generator is seeded; the caller's state comes back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _identity(configured: Configured[Task] | Configured[Architecture] | Configured[Solver]) -> dict[str, object]:
    plugin = configured.plugin
    return {
        "name": plugin.name,
        "version": plugin.version,
        "params": plugin.model_dump(mode="json"),
        "code": configured.code_hash,
    }


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


def _seed(*parts: str) -> int:
    return int.from_bytes(_digest(*parts)[:8], "big") >> 1
