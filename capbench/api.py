"""The Python API: a run as a notebook asks for it, and its result as a notebook shows it."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import JsonValue

from capbench.errors import BadSetting, UnknownName
from capbench.results import Capacity, Result, Trial

if TYPE_CHECKING:
    import altair as alt

    from capbench.measurement import Progress
    from capbench.options import RunOptions

Dtype = Literal["float32", "float64", "tf32", "bfloat16"]
Compile = Literal["auto", "on", "off"]
Executor = Literal["local", "ray"]
NARROWEST, WIDEST = 0.001, 10.0
"""Interval widths that can be asked for."""
LONGEST_TIMEOUT = 1e6


@dataclass(frozen=True, repr=False)
class Run:
    """A result, and the ways to look at it."""

    result: Result
    fact: str
    """What the task calls one fact."""

    @property
    def capacity(self) -> Capacity:
        """The answer: a number with its interval."""
        return self.result.capacity

    def table(self) -> str:
        """What `capbench run` prints."""
        from capbench.report.result_text import result_text

        return result_text(self.result, self.fact)

    def plot(self, path: str | Path | None = None) -> alt.LayerChart:
        """The success curve with its interval; written to a .png, .svg or .html file as well where one is named."""
        from capbench.report.plot import check_plot_path, save_plot, success_chart

        if path is not None:
            check_plot_path(Path(path))
            save_plot(self.result, self.fact, Path(path))
        return success_chart(self.result, self.fact)

    def to_frame(self) -> Any:
        """The trials as a table of polars or, without it, of pandas: a row a trial, a column a metric."""
        from capbench.report.frame import trial_frame

        return trial_frame(self.result)

    def __repr__(self) -> str:
        from capbench.report.result_text import answer_rows

        (label, words), (_, interval), *_ = answer_rows(self.result, self.fact)
        pair = f"{self.result.task.name} × {self.result.architecture.name}"
        return f"<capbench run {self.result.run_id}: {pair}, {label} {words}, {interval}>"

    def _repr_html_(self) -> str:
        """What a notebook shows in the place of the object."""
        from capbench.report.notebook import result_html

        return result_html(self.result, self.fact)


def run(
    *,
    task: str,
    arch: str,
    settings: Mapping[str, JsonValue] | None = None,
    params: int | str | None = None,
    match: str | None = None,
    preset: str = "standard",
    at: int | None = None,
    minimize: str | None = None,
    overload: bool = False,
    analyse: bool = False,
    protocol: str = "capbench",
    seeds: int | None = None,
    budget: int | None = None,
    ci_width: float = 0.05,
    learning_rates: Sequence[float] = (),
    steps: int | None = None,
    solver: str = "adam",
    device: str = "auto",
    executor: Executor = "local",
    address: str = "auto",
    gpus: float = 1.0,
    trial_timeout: float | None = None,
    dtype: Dtype | None = None,
    compile_mode: Compile = "auto",
    plugins: Sequence[str | Path] = (),
    progress: bool = False,
) -> Run:
    """Measures how many facts an architecture holds: `capbench run` with its options as keyword arguments.

    `settings` are what `--set` takes, {"task.n_items": 32}; `learning_rates` what `--lr` takes; `plugins` are files
    as `--plugin` names them. Raises what the command would print: capbench.CapbenchError and its subclasses.
    """
    from capbench.options import RunOptions

    options = RunOptions(
        task=task,
        arch=arch,
        sets=_words(settings or {}),
        params=None if params is None else str(params),
        match=match,
        preset=preset,
        at=_count("at", at),
        minimize=minimize,
        overload=overload,
        analyse=analyse,
        protocol=protocol,
        seeds=_count("seeds", seeds),
        budget=_count("budget", budget),
        ci_width=ci_width,
        rates=tuple(learning_rates),
        steps=_count("steps", steps),
        solver=solver,
        device=device,
        executor=executor,
        address=address,
        gpus=gpus,
        trial_timeout=RunOptions.trial_timeout if trial_timeout is None else trial_timeout,
        dtype=dtype,
        compile_mode=compile_mode,
    )
    _check(options)
    return _carry_out(options, [Path(file) for file in plugins], progress)


def load(source: str | Path) -> Run:
    """A finished run: a JSON document by its path, or a stored run by its id."""
    from capbench.reading import read_result
    from capbench.store import Store, home

    is_file = isinstance(source, Path) or source.endswith(".json")
    result = read_result(Path(source)) if is_file else Store(home()).run(str(source))
    if result is None:
        raise UnknownName(f"no stored run {source!r}; capbench results lists them, and a document's path ends in .json")
    return Run(result, _fact(result.task.name))


def _carry_out(options: RunOptions, files: Sequence[Path], progress: bool) -> Run:
    """The way every run goes: plugins, request, checks, execution."""
    from capbench.options import build_request
    from capbench.registry import load_registry
    from capbench.runner import execute
    from capbench.store import Store, home

    with _listener(progress) as listener:
        registry = load_registry(files=files)
        request = build_request(options, registry)
        request.check()
        result = execute(request, registry, Store(home()), listener)
    return Run(result, request.task.plugin.fact)


def _fact(task: str) -> str:
    """What a task calls a fact, where it is installed."""
    from capbench.registry import load_registry

    provided = load_registry().tasks.get(task)
    return "fact" if provided is None else provided.cls.fact


class Silence:
    """A listener that shows nothing."""

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A round begins."""

    def trained(self, trial: Trial) -> None:
        """A trial has ended."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Training goes on."""


def _listener(progress: bool) -> AbstractContextManager[Progress]:
    """What is told how the run goes: the command line's display, or nobody."""
    if not progress:
        return nullcontext(Silence())
    from capbench.cli.progress import show_progress

    return show_progress()


def _words(settings: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Settings in the words of `--set`: the values as JSON, so that none of them is read as a file's name."""
    try:
        return tuple(f"{path}={json.dumps(value)}" for path, value in settings.items())
    except TypeError as error:
        raise BadSetting(f"settings take what JSON knows, such as int and str: {error}") from error


def _count(name: str, value: int | None) -> int | None:
    """A whole number from 1, numpy's too."""
    try:
        count = None if value is None else operator.index(value)
    except TypeError as error:
        raise BadSetting(f"{name} takes a whole number, got {value!r}") from error
    if count is not None and count < 1:
        raise BadSetting(f"{name} takes a whole number from 1, got {value}")
    return count


def _check(options: RunOptions) -> None:
    """Refuses what the command line refuses while it reads its options."""
    if not NARROWEST <= options.ci_width <= WIDEST:
        raise BadSetting(f"ci_width takes a share from {NARROWEST:g} to {WIDEST:g}, got {options.ci_width!r}")
    for rate in options.rates:
        if not rate > 0:
            raise BadSetting(f"learning_rates take numbers above 0, got {rate!r}")
    if not 0 <= options.trial_timeout <= LONGEST_TIMEOUT:
        raise BadSetting(f"trial_timeout takes seconds from 0, which is never, got {options.trial_timeout!r}")
    if options.dtype not in (None, *get_args(Dtype)):
        raise BadSetting(f"dtype takes {', '.join(get_args(Dtype))} or None, got {options.dtype!r}")
    if options.compile_mode not in get_args(Compile):
        raise BadSetting(f"compile_mode takes {', '.join(get_args(Compile))}, got {options.compile_mode!r}")
