"""Options: a run as the user words it, turned into a checked request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capbench.architecture import Architecture
from capbench.engine.compiling import CompileMode
from capbench.engine.precision import Dtype
from capbench.errors import BadSetting
from capbench.executors.local import TRIAL_TIMEOUT
from capbench.matching import match_parameters, parse_count
from capbench.presets import preset_named
from capbench.protocols import protocol_named
from capbench.registry import Registry
from capbench.request import Request, check_pair
from capbench.settings import Configured, configure, parse_sets
from capbench.task import Task
from capbench.where import ExecutorName, Where


@dataclass(frozen=True)
class RunOptions:
    """The words of `capbench run`; the meaning of each stands in its help."""

    task: str
    arch: str
    sets: tuple[str, ...] = ()
    params: str | None = None
    match: str | None = None
    preset: str = "standard"
    at: int | None = None
    minimize: str | None = None
    overload: bool = False
    analyse: bool = False
    protocol: str = "capbench"
    seeds: int | None = None
    budget: int | None = None
    ci_width: float = 0.05
    rates: tuple[float, ...] = ()
    steps: int | None = None
    solver: str = "adam"
    device: str = "auto"
    executor: ExecutorName = "local"
    address: str = "auto"
    gpus: float = 1.0
    compile_mode: CompileMode = "auto"
    dtype: Dtype | None = None
    trial_timeout: float = TRIAL_TIMEOUT

    @property
    def where(self) -> Where:
        """Where its groups run."""
        return Where(self.device, self.executor, self.address, self.gpus)


def build_request(options: RunOptions, registry: Registry) -> Request:
    """Names looked up, fields set, the width matched where that is asked for."""
    for option, values in {"--ci-width": (options.ci_width,), "--lr": options.rates}.items():
        if not all(math.isfinite(value) for value in values):
            raise BadSetting(f"{option} takes a number, got {values[0]}")
    overrides, preset, protocol = (
        parse_sets(options.sets),
        preset_named(options.preset),
        protocol_named(options.protocol),
    )
    task = configure(registry.task(options.task), preset.name, overrides["task"])
    architecture = configure(registry.architecture(options.arch), preset.name, overrides["arch"])
    fields = {**protocol.solver_fields, **overrides["solver"]}
    return Request(
        task=task,
        architecture=_matched(options, registry, task, architecture),
        solver=configure(registry.solver(options.solver), preset.name, fields),
        preset=preset,
        at=options.at,
        minimize=options.minimize,
        seeds=options.seeds,
        budget=options.budget,
        learning_rates=tuple(sorted(set(options.rates))),
        steps=options.steps,
        ci_width=options.ci_width,
        where=options.where,
        compile_mode=options.compile_mode,
        dtype=options.dtype,
        trial_timeout=options.trial_timeout,
        overload=options.overload,
        analyse=options.analyse,
        protocol=protocol,
    )


def _matched(
    options: RunOptions, registry: Registry, task: Configured[Task], architecture: Configured[Architecture]
) -> Configured[Architecture]:
    """The architecture at the width that --params or --match asks for."""
    if options.params is not None and options.match is not None:
        raise BadSetting("--params and --match both choose the count; give one of them")
    if options.params is not None:
        return match_parameters(task.plugin, architecture, parse_count(options.params))
    if options.match is not None:
        other = configure(registry.architecture(options.match), options.preset, {})
        return match_parameters(task.plugin, architecture, check_pair(task.plugin, other.plugin))
    return architecture


def matched_text(request: Request) -> str:
    """What a match came to: the widths that could be chosen and the count they give."""
    task, architecture = request.task.plugin, request.architecture.plugin
    widths = ", ".join(f"{field}={getattr(architecture, field)}" for field in architecture.widths(task.signature))
    return f"matched: {architecture.name} with {widths} has {check_pair(task, architecture):,} parameters"
