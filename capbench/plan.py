"""The plan of a suite: one entry a place, those that cannot be reached set apart with the reason, and its shards."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

from capbench.errors import BadSetting, UnknownName, UnsupportedSignature, UserError
from capbench.options import RunOptions, build_request
from capbench.registry import Registry
from capbench.request import Request, check_pair
from capbench.results import MissingRecord, SuiteRecord
from capbench.suite import Rule, Suite
from capbench.where import Where

SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class Entry:
    """A run that a suite asks for."""

    place: SuiteRecord
    request: Request
    n_parameters: int

    @property
    def task(self) -> str:
        """Name of its task."""
        return self.request.task.plugin.name

    @property
    def architecture(self) -> str:
        """Name of its architecture."""
        return self.request.architecture.plugin.name

    @property
    def place_name(self) -> tuple[str, str, int]:
        """Task, architecture and tier: what makes it one of the suite's entries."""
        return self.task, self.architecture, self.place.tier


@dataclass(frozen=True)
class Plan:
    """What is to be run, and what a suite asks for but cannot be."""

    entries: tuple[Entry, ...]
    missing: tuple[MissingRecord, ...]

    def shard(self, part: int, parts: int) -> Plan:
        """One of several equal parts: neighbours cost alike, so every n-th entry makes them fair as well."""
        return Plan(self.entries[part - 1 :: parts], self.missing)


def make_plan(
    suite: Suite,
    registry: Registry,
    tasks: Collection[str] = (),
    architectures: Collection[str] = (),
    where: Where = Where(),  # noqa: B008 - frozen
) -> Plan:
    """Every place of a suite, small tiers first; pairs that do not fit at all have none.

    A function of the suite and the plugins alone: machines with the same plugins have the same plan.
    """
    chosen_tasks = _chosen("task", suite.tasks or sorted(registry.tasks), tasks)
    chosen = _chosen("architecture", suite.architectures or sorted(registry.architectures), architectures)
    places = [(task, name, tier) for tier in sorted(suite.tiers) for task in chosen_tasks for name in chosen]
    found = [_entry(suite, registry, *place, where) for place in places]
    return Plan(
        tuple(each for each in found if isinstance(each, Entry)),
        tuple(each for each in found if isinstance(each, MissingRecord)),
    )


def parse_shard(text: str) -> tuple[int, int]:
    """`3/16`: the third of sixteen parts."""
    match = SHARD.fullmatch(text)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= parts:
        raise BadSetting(f"--shard takes PART/PARTS such as 3/16, from 1/16 to 16/16, got {text!r}")
    return part, parts


def _chosen(kind: str, all_names: Sequence[str], only: Collection[str]) -> list[str]:
    for name in only:
        if name not in all_names:
            raise UnknownName.among(f"{kind} of this suite", name, all_names, ", ".join(all_names))
    return [name for name in all_names if not only or name in only]


def _entry(
    suite: Suite, registry: Registry, task: str, architecture: str, tier: int, where: Where
) -> Entry | MissingRecord | None:
    """A place of the suite: a run, a reason why there is none, or nothing where the pair does not fit."""
    rules = [rule for rule in suite.rules if rule.speaks_of(task, architecture, tier)]
    options = replace(_options(suite, rules, task, architecture), **asdict(where))
    missing = MissingRecord(task=task, architecture=architecture, tier=tier, reason="")
    try:
        request = build_request(options, registry)
    except UserError as error:
        raise type(error)(f"suite {suite.name}, {task} × {architecture} at {tier:,}: {error}") from error
    try:
        check_pair(request.task.plugin, request.architecture.plugin)
        for reason in (rule.skip for rule in rules if rule.skip):
            return missing.model_copy(update={"reason": f"left out: {reason}"})
        request = build_request(replace(options, params=str(tier)), registry)
        count = check_pair(request.task.plugin, request.architecture.plugin)
    except UnsupportedSignature:
        return None
    except UserError as error:
        return missing.model_copy(update={"reason": str(error)})
    except Exception as error:  # noqa: BLE001 - the plugin border: a pair that raises is missing, with the reason
        return missing.model_copy(update={"reason": f"{type(error).__name__}: {error}"})
    return Entry(SuiteRecord(name=suite.name, version=suite.version, tier=tier), request, count)


def _options(suite: Suite, rules: Sequence[Rule], task: str, architecture: str) -> RunOptions:
    """The words of `capbench run` for a place: the suite's, changed by the rules that speak of it."""
    options = RunOptions(
        task, architecture, preset=suite.preset, seeds=suite.seeds, budget=suite.budget, ci_width=suite.ci_width
    )
    for rule in rules:
        options = replace(
            options,
            sets=(*options.sets, *rule.set),
            rates=rule.rates or options.rates,
            steps=rule.steps or options.steps,
            budget=rule.budget or options.budget,
        )
    return options
