"""The Python API: runs from notebooks and scripts, and their results as a notebook shows them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pydantic import JsonValue

from capbench.documents.result import Capacity, Result
from capbench.errors import BadSetting, UnknownName
from capbench.measure.options import RunOptions, check_options, keyword_of

if TYPE_CHECKING:
    import altair as alt

    from capbench.contract.architecture import Architecture
    from capbench.contract.plugin import Plugin
    from capbench.contract.task import Task
    from capbench.measure.session import RunListener
    from capbench.registry.registry import Registry
    from capbench.studies.differences import Difference
    from capbench.studies.fit import FitReport
    from capbench.studies.jobs import StudyListener
    from capbench.studies.sweep import Point
    from capbench_leaderboard.ranking.contrast import Contrast

P = TypeVar("P", bound="Plugin")


@dataclass(frozen=True)
class OwnClasses:
    """Classes that were given instead of names, and the fields that their instances set."""

    tasks: tuple[type[Task], ...] = ()
    architectures: tuple[type[Architecture], ...] = ()
    settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: str | Task | type[Task], archs: Sequence[str | Architecture | type[Architecture]]) -> OwnClasses:
        """What is not a name; of several architectures, none may set fields of its own: those belong in the grid."""
        _check_kinds(task, archs)
        own = [_class_of(arch) for arch in archs if not isinstance(arch, str)]
        if len(archs) > 1 and any(_fields_set(arch) for arch in archs):
            raise BadSetting("of several architectures none sets fields; give classes, and fields in grid or settings")
        fields = {"task": _fields_set(task), "arch": _fields_set(archs[0]) if archs else {}}
        settings = {f"{part}.{name}": value for part, values in fields.items() for name, value in values.items()}
        tasks = () if isinstance(task, str) else (_class_of(task),)
        return cls(tasks, tuple(own), _spelled_settings(settings))

    def add_to(self, registry: Registry) -> None:
        """Adds the classes to a registry."""
        for task in self.tasks:
            registry.add_class("capbench_tasks", task)
        for architecture in self.architectures:
            registry.add_class("capbench_architectures", architecture)


def _check_kinds(task: object, archs: Sequence[object]) -> None:
    """Raises BadSetting for what is neither a name nor a plugin of the right kind."""
    from capbench.contract.architecture import Architecture
    from capbench.contract.task import Task

    for keyword, base, part in (("task", Task, task), *(("arch", Architecture, arch) for arch in archs)):
        if not isinstance(part, str | base) and not (isinstance(part, type) and issubclass(part, base)):
            what = part.__qualname__ if isinstance(part, type) else f"an object of {type(part).__qualname__}"
            kind = base.__name__
            hint = ", whose build() returns the nn.Module" if base is Architecture else ""
            raise BadSetting(f"{keyword} takes a name, or a class or an object of capbench.{kind}, got {what}{hint}")


def _class_of(part: P | type[P]) -> type[P]:
    return part if isinstance(part, type) else type(part)


def _fields_set(part: str | Plugin | type[Plugin]) -> dict[str, JsonValue]:
    """The fields that an instance sets, as JSON."""
    if isinstance(part, str | type):
        return {}
    dumped: dict[str, JsonValue] = part.model_dump(mode="json", include=part.model_fields_set)
    return dumped


@dataclass(frozen=True, repr=False)
class Run:
    """A result, with its table, plot and data frame."""

    result: Result
    fact: str
    """What the task calls one fact."""

    @property
    def capacity(self) -> Capacity:
        """The answer: a number with its interval."""
        return self.result.capacity

    def table(self, verbose: bool = False) -> str:
        """What `capbench run` prints, or with `verbose` what `capbench run -v` prints."""
        from capbench.report.result_text import result_text

        return result_text(self.result, self.fact, "full" if verbose else "short")

    def plot(self, path: str | Path | None = None) -> alt.LayerChart:
        """The success curve with its interval; also written to a .svg, .png, .pdf or .html file if one is named."""
        from capbench.report.result_plot import check_plot_path, save_plot, success_chart

        if path is not None:
            check_plot_path(Path(path))
            save_plot(self.result, self.fact, Path(path))
        return success_chart(self.result, self.fact)

    def to_frame(self) -> Any:
        """The trials as a table of polars or, without it, of pandas: one row per trial, one column per metric."""
        from capbench.report.notebook import trial_frame

        return trial_frame(self.result)

    def __repr__(self) -> str:
        from capbench.report.result_text import answer_rows

        (label, words), (_, interval), *_ = answer_rows(self.result, self.fact)
        pair = f"{self.result.task.name} × {self.result.architecture.name}"
        return f"<capbench run {self.result.run_id}: {pair}, {label} {words}, {interval}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook displays."""
        from capbench.report.notebook import result_html

        return result_html(self.result, self.fact)


@dataclass(frozen=True, repr=False)
class Sweep:
    """The points of a sweep, with their table and plot."""

    points: tuple[Point, ...]
    grid: Mapping[str, tuple[str, ...]]
    fact: str

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that there are, in the order of the grid."""
        return tuple(Run(point.result, self.fact) for point in self.points if point.result is not None)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Every architecture beside the first one; empty for a sweep of one architecture."""
        from capbench.studies.differences import differences
        from capbench.studies.sweep import ARCH

        return tuple(differences(self.points)) if ARCH in self.grid else ()

    def table(self) -> str:
        """What `capbench sweep` prints."""
        from capbench.report.study_text import sweep_text

        return sweep_text(self.points, self.grid, self.fact)

    def plot(self, path: str | Path | None = None) -> alt.LayerChart:
        """Lines over one field or a heat map over two; written to a file as well where one is named."""
        from capbench.report.sweep_plot import check_sweep_plot, save_sweep_plot, sweep_chart

        check_sweep_plot(Path(path or "sweep.svg"), self.grid)
        if path is not None:
            save_sweep_plot(self.points, self.grid, self.fact, Path(path))
        return sweep_chart(self.points, self.grid, self.fact)

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(values)} {name}" for name, values in self.grid.items())
        return f"<capbench sweep: {axes}, {len(self.runs)} of {len(self.points)} points>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook displays."""
        from capbench.report.notebook import sweep_html

        return sweep_html(self.points, self.grid, self.fact)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Architectures on one task, measured on the same seeds, with their table, plot and answer."""

    runs: tuple[Run, ...]
    """In the order in which the architectures were given."""

    @property
    def sentence(self) -> str:
        """Which of them holds more, by how much, how sure that is, and what it would cost to be surer."""
        from capbench_leaderboard.ranking.contrast import sentence

        return sentence(self.contrast)

    @property
    def contrast(self) -> Contrast:
        """The one that holds most against the next one: their ratio with its interval."""
        from capbench_leaderboard.ranking.contrast import contrast

        return contrast(self._results)

    def table(self) -> str:
        """What `capbench compare` prints."""
        from capbench_leaderboard.compare import ranked, table_text

        return table_text(ranked(self._results), self.sentence)

    def plot(self, path: str | Path | None = None) -> alt.LayerChart:
        """The success curves with their intervals; also written to a file if one is named."""
        from capbench.report.result_plot import check_plot_path
        from capbench_leaderboard.comparison_picture import comparison_chart, save_comparison

        fact = self.runs[0].fact
        if path is not None:
            check_plot_path(Path(path))
            save_comparison(self._results, fact, self.sentence, Path(path))
        return comparison_chart(self._results, fact, self.sentence)

    @property
    def _results(self) -> list[Result]:
        return [run.result for run in self.runs]

    def __repr__(self) -> str:
        return f"<capbench comparison: {self.sentence}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook displays."""
        from capbench.report.notebook import table_html
        from capbench_leaderboard.compare import ranked, table_rows

        return table_html(table_rows(ranked(self._results)), self.sentence)


def run(
    *,
    task: str | Task | type[Task],
    arch: str | Architecture | type[Architecture],
    settings: Mapping[str, JsonValue] | None = None,
    params: int | str | None = None,
    plugins: Sequence[str | Path] = (),
    progress: bool = False,
    **options: Any,
) -> Run:
    """Measures how many facts an architecture holds: `capbench run` with its options as keyword arguments.

    `task` and `arch` are names, classes, or instances whose fields are set: arch=MyAttention(n_heads=8). `settings`
    are what `--set` takes, {"task.n_items": 32}; `learning_rates` what `--lr` takes; `plugins` are files as `--plugin`
    names them. Raises what the command would print: capbench.CapbenchError and its subclasses.
    """
    own = OwnClasses.of(task, [arch])
    checked = _options({"task": task, "arch": arch, "settings": settings, "params": params, **options}, own)
    return _run(checked, own, [Path(file) for file in plugins], progress)


def _options(keywords: Mapping[str, Any], own: OwnClasses) -> RunOptions:
    """The options of keywords as `run` takes them."""
    fields = {keyword_of(name): name for name in RunOptions.model_fields}
    for keyword in keywords:
        if keyword not in fields:
            raise TypeError(f"got an unexpected keyword argument {keyword!r}; capbench takes {', '.join(fields)}")
    values = {fields[keyword]: value for keyword, value in keywords.items() if value is not None}
    values["task"], values["arch"] = (_name(keywords[part]) for part in ("task", "arch"))
    values["set"] = (*own.settings, *_spelled_settings(keywords.get("settings") or {}))
    if "params" in values:
        values["params"] = str(values["params"])
    return check_options(values, keyword_of)


def sweep(
    *,
    task: str | Task | type[Task],
    arch: str | Architecture | type[Architecture] | Sequence[str | Architecture | type[Architecture]],
    grid: Mapping[str, Sequence[JsonValue]] | None = None,
    settings: Mapping[str, JsonValue] | None = None,
    params: int | str | None = None,
    plugins: Sequence[str | Path] = (),
    progress: bool = False,
    **options: Any,
) -> Sweep:
    """Measures at every point of a grid: `capbench sweep` with its options as keyword arguments.

    `grid` has values by field, {"arch.n_heads": [1, 2, 4]}. Several architectures are measured at every point and
    compared with the first of them. The other keywords are those of `run`.
    """
    from capbench.registry.registry import load_registry
    from capbench.store.store import Store, home
    from capbench.studies.sweep import ARCH, check_grid, plan_sweep, run_points, spelled_grid

    archs = [arch] if isinstance(arch, str | type) or not isinstance(arch, Sequence) else list(arch)
    own = OwnClasses.of(task, archs)
    first = _name(archs[0])
    checked = _options({"task": task, "arch": first, "settings": settings, "params": params, **options}, own)
    axes = spelled_grid(grid or {})
    if len(archs) > 1:
        axes = {ARCH: tuple(map(_name, archs)), **axes}
    axes = check_grid(axes)
    with _study_listener(progress) as listener:
        registry = load_registry(files=[Path(file) for file in plugins])
        own.add_to(registry)
        planned = plan_sweep(checked, axes, registry)
        points = run_points(planned, registry, Store(home()), listener)
        return Sweep(tuple(points), axes, registry.task(checked.task).cls.fact)


def compare(
    *archs: str | Architecture | type[Architecture],
    task: str | Task | type[Task],
    settings: Mapping[str, JsonValue] | None = None,
    params: int | str | None = None,
    plugins: Sequence[str | Path] = (),
    progress: bool = False,
    **options: Any,
) -> Comparison:
    """Which architecture holds more facts of a task: `capbench compare` with its options as keyword arguments.

    `settings` for all of them begin with `arch`, those of one with its name: {"mha.n_heads": 8}. An instance sets its
    own fields. The other keywords are those of `run`, without those that ask another question than the capacity.
    """
    from capbench.registry.registry import load_registry
    from capbench.store.store import Store, home
    from capbench_leaderboard.compare import OTHER_QUESTIONS, measure, plan_comparison

    if asked := [name for name in (*OTHER_QUESTIONS, "analyse") if options.get(name)]:
        raise BadSetting(f"compare asks how many facts are held; {', '.join(asked)} asks something else (run, sweep)")
    own = OwnClasses.of(task, [part if isinstance(part, str) else _class_of(part) for part in archs])
    fields = {f"{_name(arch)}.{name}": value for arch in archs for name, value in _fields_set(arch).items()}
    settings, names = {**fields, **(settings or {})}, [_name(arch) for arch in archs]
    checked = _options({"task": task, "arch": "", "settings": settings, "params": params, **options}, own)
    with _study_listener(progress) as listener:
        registry = load_registry(files=[Path(file) for file in plugins])
        own.add_to(registry)
        jobs = plan_comparison(names, checked, registry)
        results = measure(jobs, registry, Store(home()), listener)
    return Comparison(tuple(Run(result, jobs[0].request.task.plugin.fact) for result in results))


def runs(
    *,
    task: str | None = None,
    arch: str | None = None,
    tags: Sequence[str] = (),
    where: Sequence[str] = (),
) -> list[Run]:
    """The stored runs that match, oldest first: what `capbench results` lists."""
    from capbench.documents.conditions import check_condition
    from capbench.registry.registry import load_registry
    from capbench.store.queries import StoreQuery
    from capbench.store.store import existing_store

    for condition in where:
        check_condition(condition)
    store, registry = existing_store(), load_registry()
    found = store.find_runs(StoreQuery(task, arch, tags=tuple(tags), conditions=tuple(where))) if store else []
    return [Run(stored.result, registry.fact_of(stored.result.task.name)) for stored in found]


def fit(measured: Sweep | Sequence[Run], *, x: str, y: str = "capacity") -> FitReport:
    """Simple laws fitted to results, the best predictor first: what `capbench fit` does."""
    from capbench.studies.fit import fit_forms
    from capbench.studies.fit_data import points_of

    points, left_out = points_of(
        [each.result for each in (measured.runs if isinstance(measured, Sweep) else measured)], x, y
    )
    return fit_forms(points, x, y, left_out)


def _run_signature() -> inspect.Signature:
    """The signature of `run` with every option by name, for notebooks and documents."""
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [each for each in inspect.signature(run).parameters.values() if each.kind is kind]
    names = {each.name for each in own}
    types = get_type_hints(RunOptions)
    generated = [
        inspect.Parameter(keyword_of(name), kind, default=field.default, annotation=types[name])
        for name, field in RunOptions.model_fields.items()
        if keyword_of(name) not in names
    ]
    before, after = own[:4], own[4:]
    return inspect.Signature([*before, *generated, *after], return_annotation=Run)


run.__signature__ = _run_signature()  # type: ignore[attr-defined]


def load(source: str | Path) -> Run:
    """A finished run: a JSON document by its path, or a stored run by the start of its id, its name, or "latest"."""
    from capbench.documents.strict_json import read_result
    from capbench.store.store import existing_store

    if isinstance(source, Path) or source.endswith(".json"):
        result = read_result(Path(source))
    elif store := existing_store():
        result = store.find_run(source)
    else:
        raise UnknownName(f"no stored run {source!r}: the store is empty (a document's path ends in .json)")
    return Run(result, _fact(result.task.name))


def _run(options: RunOptions, own: OwnClasses, files: Sequence[Path], progress: bool) -> Run:
    """Loads plugins, checks the request, and executes it."""
    from capbench.measure.request import build_request
    from capbench.measure.run import execute
    from capbench.registry.registry import load_registry
    from capbench.store.store import Store, home

    with _listener(progress) as listener:
        registry = load_registry(files=files)
        own.add_to(registry)
        request = build_request(options, registry)
        result = execute(request, registry, Store(home()), listener)
    return Run(result, request.task.plugin.fact)


def _fact(task: str) -> str:
    """What a task calls a fact, where it is installed."""
    from capbench.registry.registry import load_registry

    return load_registry().fact_of(task)


def _listener(progress: bool) -> AbstractContextManager[RunListener]:
    """The command line's progress display, or a listener that shows nothing."""
    from capbench.measure.session import NullListener
    from capbench.report.progress import show_progress

    return show_progress() if progress else nullcontext(NullListener())


def _study_listener(progress: bool) -> AbstractContextManager[StudyListener]:
    """The command line's progress display of a study, or a listener that shows nothing."""
    from capbench.report.progress import show_study
    from capbench.studies.jobs import NullStudyListener

    return show_study() if progress else nullcontext(NullStudyListener())


def _name(part: str | Plugin | type[Plugin]) -> str:
    """The name of a plugin that is given by name, as a class or as an instance."""
    return part if isinstance(part, str) else str(getattr(part, "name", ""))


def _spelled_settings(settings: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Settings as `--set` takes them: values as JSON, so that none of them is read as the name of a file."""
    try:
        return tuple(f"{path}={json.dumps(value)}" for path, value in settings.items())
    except TypeError as error:
        raise BadSetting(f"settings must be JSON values, such as int and str: {error}") from error
