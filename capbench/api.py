"""The Python API: runs from notebooks and scripts, and their results as a notebook shows them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import JsonValue

from capbench.documents.result import Capacity, Result
from capbench.errors import BadSetting, UnknownName
from capbench.measure.options import RunOptions, check_options, keyword_of

if TYPE_CHECKING:
    import altair as alt

    from capbench.measure.session import RunListener


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

    def table(self) -> str:
        """What `capbench run` prints."""
        from capbench.report.result_text import result_text

        return result_text(self.result, self.fact)

    def plot(self, path: str | Path | None = None) -> alt.LayerChart:
        """The success curve with its interval; written to a .png, .svg or .html file as well where one is named."""
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


def run(
    *,
    task: str,
    arch: str,
    settings: Mapping[str, JsonValue] | None = None,
    params: int | str | None = None,
    plugins: Sequence[str | Path] = (),
    progress: bool = False,
    **options: Any,
) -> Run:
    """Measures how many facts an architecture holds: `capbench run` with its options as keyword arguments.

    `settings` are what `--set` takes, {"task.n_items": 32}; `learning_rates` what `--lr` takes; `plugins` are files
    as `--plugin` names them. Raises what the command would print: capbench.CapbenchError and its subclasses.
    """
    fields = {keyword_of(name): name for name in RunOptions.model_fields}
    for keyword in options:
        if keyword not in fields or keyword == "settings":
            raise TypeError(f"run() got an unexpected keyword argument {keyword!r}; it takes {', '.join(fields)}")
    given = {fields[keyword]: value for keyword, value in options.items() if value is not None}
    text = None if params is None else str(params)
    values = {**given, "task": task, "arch": arch, "params": text, "set": _spelled_settings(settings or {})}
    return _run(check_options(values, keyword_of), [Path(file) for file in plugins], progress)


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
    """A finished run: a JSON document by its path, or a stored run by its id."""
    from capbench.documents.strict_json import read_result
    from capbench.store.store import Store, home

    is_file = isinstance(source, Path) or source.endswith(".json")
    result = read_result(Path(source)) if is_file else Store(home()).run(str(source))
    if result is None:
        raise UnknownName(f"no stored run {source!r}; capbench results lists them, and a document's path ends in .json")
    return Run(result, _fact(result.task.name))


def _run(options: RunOptions, files: Sequence[Path], progress: bool) -> Run:
    """Loads plugins, checks the request, and executes it."""
    from capbench.measure.request import build_request
    from capbench.measure.run import execute
    from capbench.registry.registry import load_registry
    from capbench.store.store import Store, home

    with _listener(progress) as listener:
        registry = load_registry(files=files)
        request = build_request(options, registry)
        result = execute(request, registry, Store(home()), listener)
    return Run(result, request.task.plugin.fact)


def _fact(task: str) -> str:
    """What a task calls a fact, where it is installed."""
    from capbench.registry.registry import load_registry

    provided = load_registry().tasks.get(task)
    return "fact" if provided is None else provided.cls.fact


def _listener(progress: bool) -> AbstractContextManager[RunListener]:
    """The command line's progress display, or a listener that shows nothing."""
    from capbench.measure.session import NullListener
    from capbench.report.progress import show_progress

    return show_progress() if progress else nullcontext(NullListener())


def _spelled_settings(settings: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Settings as `--set` takes them: values as JSON, so that none of them is read as the name of a file."""
    try:
        return tuple(f"{path}={json.dumps(value)}" for path, value in settings.items())
    except TypeError as error:
        raise BadSetting(f"settings must be JSON values, such as int and str: {error}") from error
