"""The result document of a run: every summary in it derived from the trials."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from capbench.contract.architecture import Architecture
from capbench.contract.plugin import Plugin
from capbench.contract.signatures import Lookup
from capbench.contract.task import Task
from capbench.documents.result import (
    BITS,
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
from capbench.measure.estimate.floor import capacity_above_floor
from capbench.measure.estimate.precision import precision_points
from capbench.measure.estimate.readings import read_trials
from capbench.measure.estimate.summary import fixed_grid, summarise
from capbench.measure.matching import count_parameters
from capbench.measure.options import command_flags
from capbench.measure.request import Request
from capbench.measure.session import Session
from capbench.measure.theory import compare, measured_values
from capbench.registry.registry import Registry


def document(session: Session, constructed: Session | None, wall_seconds: float) -> Result:
    """The result document, every summary in it derived from the trials."""
    request = session.request
    task, architecture = request.task.plugin, request.architecture.plugin
    summary = summarise(session.trials, session.protocol)
    capacity = _with_d_qk_total(_with_remedy(summary.capacity, task), session)
    n_parameters = _parameters_at(session, capacity)
    bits = summary.metrics.get(BITS, 0.0)
    values = {**summary.data, **summary.metrics, "bits_per_parameter": bits / n_parameters}
    with session.registry.bound_calls():
        bounds = compare(
            [provided.cls for provided in session.registry.bounds.values()],
            task,
            architecture,
            *measured_values(capacity, session.protocol.at, values, summary.largest_held),
        )
    return Result(
        run_id=_run_id(session),
        command=command(session.request),
        name=request.options.name or "",
        tags=tuple(dict.fromkeys(request.options.tags)),
        task=request.task.ref(),
        architecture=ArchitectureRef(
            **dict(request.architecture.ref()),
            family=architecture.family,
            shapes_tried=session.shapes_tried,
            state_size=_state_size(session, capacity),
        ),
        solver=request.solver.ref(),
        protocol=session.protocol,
        n_parameters=n_parameters,
        capacity=capacity,
        readings=read_trials(session.trials, session.protocol),
        above_floor=_above_floor(session),
        precision=precision_points(session.trials, session.protocol, summary, n_parameters),
        bits=bits,
        bits_per_parameter=bits / n_parameters,
        metrics=summary.metrics,
        data=summary.data,
        rates=summary.rates,
        constructed=constructed and _constructed(constructed),
        bounds=tuple(bounds),
        trials=_in_order(session.trials),
        environment=environment(session.registry, session.backend.machine, _workers(session, constructed)),
        timing=Timing(
            wall_seconds=wall_seconds,
            train_seconds=session.cost.seconds,
            compile_seconds=session.cost.compile_seconds,
            lane_steps=session.cost.lane_steps,
            compiled_lane_steps=session.cost.compiled_lane_steps,
            eager_reasons=tuple(sorted(session.cost.eager_reasons)),
            trials_trained=session.n_trained,
            trials_reused=session.n_reused,
            grid_trials=fixed_grid(session.trials, session.protocol),
            phases=_phases(session, constructed, wall_seconds),
        ),
    )


def _phases(session: Session, constructed: Session | None, wall_seconds: float) -> dict[str, float]:
    """Seconds per phase; the remainder is planning, fitting and checking."""
    cost = Cost()
    for each in (session, constructed):
        if each is not None:
            cost.add(each.cost)
    rest = max(0.0, wall_seconds - sum(cost.phases.values()))
    return {**{phase: max(0.0, seconds) for phase, seconds in cost.phases.items()}, "planning": rest}


def _constructed(session: Session) -> Constructed:
    """The capacity that explicit weights reach."""
    capacity = summarise(session.trials, session.protocol).capacity
    return Constructed(
        solver=session.request.solver.ref(),
        capacity=capacity,
        above_floor=_above_floor(session),
        trials=_in_order(session.trials),
    )


def _above_floor(session: Session) -> Capacity | None:
    """The capacity of explicit weights above the margin floor."""
    return capacity_above_floor(session.trials, session.protocol)


def _in_order(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials in an order that does not depend on when they were trained."""
    return tuple(sorted(trials, key=lambda t: (t.at, t.seed, t.learning_rate or 0.0)))


def command(request: Request) -> str:
    """The command line of the same request: every option that is not a default."""
    words = ["capbench", *_plugin_files(request), "run"]
    words += ["--task", request.task.plugin.name, "--arch", request.architecture.plugin.name]
    words += command_flags(request.options)
    for section, configured in (("task", request.task), ("arch", request.architecture), ("solver", request.solver)):
        implied = request.training.solver_fields(request.architecture.plugin.name) if section == "solver" else {}
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


def _with_remedy(capacity: Capacity, task: Task) -> Capacity:
    """Names the field of the task that allows more facts, where all that there are are held."""
    if capacity.status != "at_least" or capacity.limited_by != "axis":
        return capacity
    numbers = {name: value for name, value in task if isinstance(value, int) and not isinstance(value, bool)}
    raising = (name for name, value in numbers.items() if _max_load(task, {name: 2 * value}) > task.max_load)
    return capacity.model_copy(update={"raised_by": next(raising, None)})


def _max_load(task: Task, fields: Mapping[str, int]) -> int:
    """The largest load of a task with other fields; 0 where it does not allow them."""
    try:
        return type(task)(**{**dict(task), **fields}).max_load
    except ValidationError:
        return 0


def _with_d_qk_total(capacity: Capacity, session: Session) -> Capacity:
    """Adds D_K; under --minimize, at the estimate and at both ends of the interval."""
    if capacity.kind != "least_budget":
        return capacity.model_copy(update={"d_qk_total": _d_qk_total(session, None)})
    ends = {"d_qk_total": capacity.estimate, "d_qk_total_low": capacity.ci_low, "d_qk_total_high": capacity.ci_high}
    return capacity.model_copy(update={name: end and _d_qk_total(session, end) for name, end in ends.items()})


def _d_qk_total(session: Session, parameter_value: float | None) -> float | None:
    """D_K of the architecture, at a value of the parameter that is minimized if one is given."""
    configured = session.request.architecture
    if parameter_value is not None:
        configured = session.setup(round(parameter_value)).architecture
    heads = configured.plugin.heads(session.request.task.plugin.signature)
    return None if heads is None else float(heads.d_qk_total)


def _parameters_at(session: Session, capacity: Capacity) -> int:
    """Number of trained parameters; under --minimize, at the least value that passes."""
    if capacity.kind != "least_budget":
        return session.request.n_parameters
    return count_parameters(session.request.task.plugin, _architecture_at(session, capacity))


def _architecture_at(session: Session, capacity: Capacity) -> Architecture:
    """The architecture; under --minimize, at the least value that passes."""
    if capacity.kind != "least_budget":
        return session.request.architecture.plugin
    return session.setup(round(capacity.estimate)).architecture.plugin


def _state_size(session: Session, capacity: Capacity) -> int | None:
    """Elements of state at the end of a sequence, on tasks whose facts are in the context."""
    task = session.request.task.plugin
    if not (task.is_fresh and isinstance(task.signature, Lookup)):
        return None
    return _architecture_at(session, capacity).state_size(task.signature, task.signature.length)


def _run_id(session: Session) -> str:
    """A hash of the protocol and the trial keys: the same trials under the same protocol are the same run."""
    keys = sorted(t.key for t in session.trials)
    return hashlib.sha256("\0".join([session.protocol.model_dump_json(), *keys]).encode()).hexdigest()[:12]


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


def _workers(session: Session, constructed: Session | None) -> list[Worker]:
    """The workers of a run and of its construction, each once."""
    return merge_workers([*session.workers, *(constructed.workers if constructed else ())])
