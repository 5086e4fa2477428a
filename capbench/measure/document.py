"""The result document of a run: every summary in it derived from the trials."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

from capbench.contract.bound import D_K, FACTS
from capbench.contract.plugin import Plugin
from capbench.documents.result import (
    ArchitectureRef,
    Capacity,
    Constructed,
    Environment,
    InstalledPlugin,
    Machine,
    Result,
    Timing,
    Trial,
    Worker,
    merge_workers,
)
from capbench.engine.cost import Cost
from capbench.measure.matching import count_parameters
from capbench.measure.options import command_flags
from capbench.measure.request import Request
from capbench.measure.session import Session
from capbench.measure.summary import Summary, fixed_grid, summarise
from capbench.measure.theory import LARGEST_HELD, compare
from capbench.registry.registry import Registry


def document(run: Session, constructed: Session | None, wall_seconds: float) -> Result:
    """The result document, every summary in it derived from the trials."""
    request = run.request
    task, architecture = request.task.plugin, request.architecture.plugin
    summary = summarise(run.trials, run.protocol)
    capacity = _with_d_qk_total(summary.capacity, run)
    n_parameters = _parameters_at(run, capacity)
    bits = summary.metrics.get("bits", 0.0)
    bounds = compare(
        [provided.cls for provided in run.registry.bounds.values()],
        task,
        architecture,
        *_measured(run, summary, capacity, bits / n_parameters),
    )
    return Result(
        run_id=_run_id(run),
        command=command(run.request),
        task=request.task.ref(),
        architecture=ArchitectureRef(**dict(request.architecture.ref()), shapes_tried=run.shapes_tried),
        solver=request.solver.ref(),
        protocol=run.protocol,
        n_parameters=n_parameters,
        capacity=capacity,
        bits=bits,
        bits_per_parameter=bits / n_parameters,
        metrics=summary.metrics,
        data=summary.data,
        rates=summary.rates,
        constructed=constructed and _constructed(constructed),
        bounds=tuple(bounds),
        trials=_in_order(run.trials),
        environment=environment(run.registry, run.backend.machine, _workers(run, constructed)),
        timing=Timing(
            wall_seconds=wall_seconds,
            train_seconds=run.cost.seconds,
            compile_seconds=run.cost.compile_seconds,
            lane_steps=run.cost.lane_steps,
            compiled_lane_steps=run.cost.compiled_lane_steps,
            trials_trained=run.n_trained,
            trials_reused=run.n_reused,
            grid_trials=fixed_grid(run.trials, run.protocol),
            phases=_phases(run, constructed, wall_seconds),
        ),
    )


def _phases(run: Session, constructed: Session | None, wall_seconds: float) -> dict[str, float]:
    """Seconds per phase; the remainder is planning, fitting and checking."""
    cost = Cost()
    for each in (run, constructed):
        if each is not None:
            cost.add(each.cost)
    rest = max(0.0, wall_seconds - sum(cost.phases.values()))
    return {**{phase: max(0.0, seconds) for phase, seconds in cost.phases.items()}, "planning": rest}


def _constructed(side: Session) -> Constructed:
    """The capacity that explicit weights reach."""
    capacity = summarise(side.trials, side.protocol).capacity
    return Constructed(solver=side.request.solver.ref(), capacity=capacity, trials=_in_order(side.trials))


def _in_order(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials in an order that does not depend on when they were trained."""
    return tuple(sorted(trials, key=lambda t: (t.budget or 0, t.load, t.seed, t.learning_rate or 0.0)))


def command(request: Request) -> str:
    """The command line of the same request: every option that is not a default."""
    words = ["capbench", *_plugin_files(request), "run"]
    words += ["--task", request.task.plugin.name, "--arch", request.architecture.plugin.name]
    words += command_flags(request.options)
    for section, configured in (("task", request.task), ("arch", request.architecture), ("solver", request.solver)):
        implied = request.training.solver_fields if section == "solver" else {}
        words += _changed_fields(section, configured.plugin, request.preset.name, implied)
    return shlex.join(words)


def _plugin_files(request: Request) -> list[str]:
    """`--plugin` for each file that was used without being installed; by name only, because its folder is private."""
    origins = [configured.provenance for configured in (request.task, request.architecture, request.solver)]
    files = dict.fromkeys(origin.distribution for origin in origins if origin.is_file)
    return [word for name in files for word in ("--plugin", name)]


def _changed_fields(section: str, plugin: Plugin, preset: str, implied: Mapping[str, str | float]) -> list[str]:
    """`--set` for each field that differs from what the preset and the protocol make it."""
    cls = type(plugin)
    default = cls.model_validate({**cls.presets.get(preset, {}), **implied}).model_dump(mode="json")
    changed = {name: value for name, value in plugin.model_dump(mode="json").items() if value != default[name]}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in changed.items()}
    return [word for name, text in texts.items() for word in ("--set", f"{section}.{name}={text}")]


def _measured(
    run: Session, summary: Summary, capacity: Capacity, bits_per_parameter: float
) -> tuple[int, dict[str, float]]:
    """The load at which bounds are evaluated, and the measured values there by quantity."""
    measured = {**summary.data, **summary.metrics, "bits_per_parameter": bits_per_parameter}
    if capacity.kind == "largest_load":
        load = max(1, round(capacity.estimate))
        measured[FACTS] = capacity.estimate
        measured[LARGEST_HELD] = float(summary.largest_held or 0)
    else:
        assert run.protocol.at is not None
        load = run.protocol.at
    if capacity.d_qk_total is not None:
        measured[D_K] = capacity.d_qk_total
    return load, measured


def _with_d_qk_total(capacity: Capacity, run: Session) -> Capacity:
    """Adds D_K; under --minimize, at the estimate and at both ends of the interval."""
    if capacity.kind != "least_budget":
        return capacity.model_copy(update={"d_qk_total": _d_qk_total(run, None)})
    ends = {"d_qk_total": capacity.estimate, "d_qk_total_low": capacity.ci_low, "d_qk_total_high": capacity.ci_high}
    return capacity.model_copy(update={name: end and _d_qk_total(run, end) for name, end in ends.items()})


def _d_qk_total(run: Session, parameter_value: float | None) -> float | None:
    """D_K of the architecture; of a parameter value between two possible ones, interpolated."""
    signature = run.request.task.plugin.signature
    if parameter_value is None:
        heads = run.request.architecture.plugin.heads(signature)
        return None if heads is None else float(heads.d_qk_total)
    unit = run.protocol.unit
    low = max(1, int(parameter_value / unit)) * unit
    ends = [run.setup(at).architecture.plugin.heads(signature) for at in (low, low + unit)]
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0].d_qk_total + (parameter_value - low) / unit * (ends[1].d_qk_total - ends[0].d_qk_total)


def _parameters_at(run: Session, capacity: Capacity) -> int:
    """Number of trained parameters; under --minimize, at the smallest possible parameter value that suffices."""
    if capacity.kind != "least_budget":
        return run.request.n_parameters
    unit = run.protocol.unit
    at = math.ceil(capacity.estimate / unit) * unit
    return count_parameters(run.request.task.plugin, run.setup(at).architecture.plugin)


def _run_id(run: Session) -> str:
    """A hash of the protocol and the trial keys: the same trials under the same protocol are the same run."""
    keys = sorted(t.key for t in run.trials)
    return hashlib.sha256("\0".join([run.protocol.model_dump_json(), *keys]).encode()).hexdigest()[:12]


def environment(registry: Registry, machine: Machine, workers: Sequence[Worker] = ()) -> Environment:
    """Versions, device and plugins of this process, and the workers that trained for it."""
    return Environment(
        **machine.model_dump(),
        plugins=tuple(
            InstalledPlugin(entry_point=p.entry_point, distribution=p.distribution, version=p.version, module=p.module)
            for p in registry.loaded
        ),
        workers=tuple(workers),
    )


def _workers(run: Session, constructed: Session | None) -> list[Worker]:
    """The workers of a run and of its construction, each once."""
    return merge_workers([*run.workers, *(constructed.workers if constructed else ())])
