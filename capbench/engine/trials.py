"""Trials: the key and seeds of each, and which of them train together in a group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch
from torch import nn

from capbench.contract.architecture import Architecture
from capbench.contract.plugin import Plugin
from capbench.contract.solver import GradientSolver, Layout, Solver
from capbench.contract.task import Criterion, Task
from capbench.registry.settings import Configured

ENGINE_VERSION = 2
"""Part of every key: raised when the engine's numbers change."""
GRID_PAYS = 2
"""Score the whole grid if the facts fill at least 1/GRID_PAYS of it: a grid row costs about half of what a fact costs.
Measured on bigrams × aot in compiled lanes: 76 µs per lane-step for 300 facts, 155 for all 1,024 rows."""


@dataclass(frozen=True)
class Sampling:
    """Training on batches instead of on all facts at once."""

    batch: int
    """Facts per step."""
    n_draws: int | None = None
    """Facts drawn with replacement, once, to train on; None: every fact once."""
    scored_batches: int = 0
    """The metrics are means over this many last training batches; 0: all facts are scored at the end."""
    version: int = 3
    """Part of the key of every trial that trains on batches: raised when their numbers change."""


@dataclass(frozen=True)
class Training:
    """What decides a trial besides its plugins."""

    criterion: Criterion
    steps: int
    dtype: str = "float32"
    stops_early: bool = True
    """Whether a trial ends when it meets the criterion or reaches a plateau; False: it takes every step."""
    analyses: bool = False
    """Whether task and architecture analyse each trained model."""
    sampling: Sampling | None = None
    """How batches are drawn; None: every step sees every fact."""
    precisions: tuple[int, ...] = ()
    """Bits per weight to which each trained model is rounded at its end, to be scored again."""


@dataclass(frozen=True)
class TrialSpec:
    """One trial of a setup: its load, its seed and its learning rate (None where nothing is trained)."""

    load: int
    seed: int
    learning_rate: float | None


@dataclass(frozen=True)
class Setup:
    """A task, an architecture and a solver, configured: all the trials of a group share them."""

    task: Configured[Task]
    architecture: Configured[Architecture]
    solver: Configured[Solver]
    training: Training

    def __post_init__(self) -> None:
        """Shows a solver that asks for it the layout of the weights that it is to train."""
        solver = self.solver.plugin
        if isinstance(solver, GradientSolver) and solver.uses_layout:
            shown = replace(self.solver, plugin=solver.with_layout(self._layout()))
            object.__setattr__(self, "solver", shown)

    def _layout(self) -> Layout:
        """The names and shapes of the trained parameters, in their order."""
        module = self._any_module()
        return tuple((name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad)

    @property
    def plugins(self) -> tuple[Configured[Task], Configured[Architecture], Configured[Solver]]:
        """Its three plugins."""
        return self.task, self.architecture, self.solver

    @cached_property
    def identity(self) -> str:
        """Canonical text of everything that decides a trial except its load, seed and rate."""
        parts = {
            "engine": ENGINE_VERSION,
            "task": _identity(self.task),
            "architecture": _identity(self.architecture),
            "solver": _identity(self.solver),
            "training": _training_identity(self.training),
        }
        return json.dumps(parts, sort_keys=True)

    def key(self, trial: TrialSpec) -> str:
        """Content address of a trial: same key, same trial."""
        own = {"learning_rate": trial.learning_rate, "load": trial.load, "seed": trial.seed}
        return _digest("trial", self.identity, json.dumps(own)).hex()[:32]

    def data_seed(self, trial: TrialSpec) -> int:
        """Seed of the facts: the same for every architecture, solver and learning rate."""
        task = self.task.plugin
        fields = task.model_dump_json(exclude={*task.scoring_fields, *_unused_later_fields(task)})
        return _seed("data", task.name, str(task.version), fields, str(trial.load), str(trial.seed))

    def batch_seed(self, trial: TrialSpec) -> int:
        """Seed of the batches: like the data, the same for every architecture and learning rate."""
        return _seed("batches", str(self.data_seed(trial)))

    def init_seed(self, trial: TrialSpec) -> int:
        """Seed of the initial weights: the same for every learning rate, and for modules with equal tensors.

        So it does not depend on the name of an architecture or on a field that it does not use: one model under two
        names is one model.
        """
        return _seed("init", self.tensor_shapes, str(trial.load), str(trial.seed))

    def slots(self, trial: TrialSpec) -> int:
        """Number of slots, from the trial alone, so that results do not depend on its group.

        The next power of two; or all combinations where the module can score their grid in one go. A relation has
        the shape of its items whatever the load: all loads stack.
        """
        if not self.task.plugin.signature.has_slots:
            return self.task.plugin.max_load
        if self.has_grid and trial.load * GRID_PAYS >= self.n_combinations:
            return self.n_combinations
        return min(self.task.plugin.max_load, 1 << (trial.load - 1).bit_length())

    @cached_property
    def tensor_shapes(self) -> str:
        """The shapes of a module's parameters and buffers in their order, as text."""
        module = self._any_module()
        tensors = (*module.parameters(), *module.buffers())
        return " ".join("x".join(map(str, tensor.shape)) for tensor in tensors)

    @cached_property
    def n_combinations(self) -> int:
        """Different inputs of a lookup task; 0 for other tasks."""
        return self.task.plugin.signature.n_combinations

    @cached_property
    def has_grid(self) -> bool:
        """Whether the architecture's module scores a whole grid of inputs at once on this task."""
        if not self.n_combinations:
            return False
        return hasattr(self._any_module(), "forward_grid")

    def _any_module(self) -> nn.Module:
        """A module of the pair, to see what its models are like."""
        with self.architecture.contained(), seeded(0):
            return self.architecture.plugin.build(self.task.plugin.signature)


@dataclass(frozen=True)
class TrialGroup:
    """Trials that stack: one setup, one number of slots."""

    setup: Setup
    slots: int
    trials: tuple[TrialSpec, ...]
    is_compiled: bool = False
    """Whether its step is compiled: decided by the request, never by how long something took."""

    @cached_property
    def by_key(self) -> dict[str, TrialSpec]:
        """Its trials by their keys, which are slow to compute."""
        return {self.setup.key(trial): trial for trial in self.trials}

    @property
    def keys(self) -> set[str]:
        """The keys of its trials."""
        return set(self.by_key)

    def only(self, keys: Collection[str]) -> list[TrialGroup]:
        """The group with only the trials of these keys; no group where none is left."""
        trials = tuple(trial for key, trial in self.by_key.items() if key in keys)
        return [self.part(trials)] if trials else []

    def part(self, trials: tuple[TrialSpec, ...]) -> TrialGroup:
        """The same group with other trials."""
        return replace(self, trials=trials)

    def split(self, n_parts: int) -> list[TrialGroup]:
        """Splits into `n_parts` groups of similar cost, by taking every n-th trial."""
        return [self.part(self.trials[start::n_parts]) for start in range(min(n_parts, len(self.trials)))]

    def parts(self, size: int) -> list[TrialGroup]:
        """Splits into consecutive groups of at most `size` trials."""
        starts = range(0, len(self.trials), size)
        return [self.part(self.trials[start : start + size]) for start in starts]


def join_groups(groups: Iterable[TrialGroup]) -> list[TrialGroup]:
    """Groups of one setup as one, with the slots of the largest."""
    by_setup: dict[Setup, list[TrialGroup]] = {}
    for group in groups:
        by_setup.setdefault(group.setup, []).append(group)
    return [
        replace(same[0], slots=max(g.slots for g in same), trials=tuple(t for g in same for t in g.trials))
        for same in by_setup.values()
    ]


def group_trials(work: Iterable[tuple[Setup, TrialSpec]]) -> list[TrialGroup]:
    """Trials of equal shape together, in the order given."""
    by_shape: dict[tuple[Setup, int], list[TrialSpec]] = {}
    for setup, trial in work:
        by_shape.setdefault((setup, setup.slots(trial)), []).append(trial)
    return [TrialGroup(setup, slots, tuple(same)) for (setup, slots), same in by_shape.items()]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A scope in which torch's default generator is seeded; the caller's state is restored after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _unused_later_fields(plugin: Plugin) -> set[str]:
    """Fields that did not exist when the first results were made, and have the value that those have."""
    return {name for name, value in plugin.later_fields.items() if getattr(plugin, name) == value}


def _training_identity(training: Training) -> dict[str, object]:
    """Its fields; without precisions if there are none, so that earlier trials keep their keys."""
    fields = asdict(training)
    return fields if training.precisions else {name: fields[name] for name in fields if name != "precisions"}


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
