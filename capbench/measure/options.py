"""The options of a run, declared once.

The command line's options, the keywords of `capbench.run`, the fields of a sweep file, and the command in a result
document with its replay all follow from these two classes.
"""

from __future__ import annotations

import operator
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from capbench.documents.toml_file import names_in_folder, packaged_folder
from capbench.errors import BadDocument, BadSetting
from capbench.executors.target import TRIAL_TIMEOUT, CompileMode, ComputeTarget, Dtype, ExecutorName
from capbench.measure.presets import PRESETS

DEFAULT_CI_WIDTH = 0.05
PROTOCOL_NAMES = names_in_folder(packaged_folder("capbench.measure", "protocol_files"))


@dataclass(frozen=True)
class Option:
    """How an option is spelled and explained; the type and the limits are those of its field."""

    help: str
    takes: str = "text"
    """What is allowed, for error messages: `at takes a whole number from 1, got 0`."""
    flag: str = ""
    """On the command line; --field-name by default."""
    metavar: str | None = None
    keyword: str = ""
    """In `capbench.run`; the field's name by default."""
    completes: Literal["", "tasks", "archs", "solvers"] = ""
    """Which plugin names the shell completes."""
    bare: str = ""
    """The value on the command line where the option stands without one; empty: it needs a value."""
    negation: str = ""
    """A flag of the command line that turns the option off; empty: it has none."""
    is_in_command: bool = True
    """Whether the command in a result document repeats it."""


def _as_int(value: object) -> object:
    """Numpy's whole numbers as Python's."""
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


def _as_share(value: object) -> object:
    """A share from text such as 0.05 or 5%."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return value


Whole = Annotated[int, BeforeValidator(_as_int), Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
ShareText = BeforeValidator(_as_share)
"""Lets a share be written as 5%."""
CiWidth = Annotated[float, Field(ge=0.001, le=10)]
WHOLE = "a whole number from 1"


class MeasureOptions(BaseModel):
    """What is measured, and with what effort."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    task: Annotated[str, Option("The task (capbench list).", "a task's name", metavar="NAME", completes="tasks")]
    arch: Annotated[
        str, Option("The architecture (capbench list).", "an architecture's name", metavar="NAME", completes="archs")
    ]
    set: Annotated[
        tuple[str, ...],
        Field(strict=False, description="fields as --set takes them"),
        Option(
            "Override a field: task.n_items=32, arch.n_heads=8, solver.decay=linear; VALUE may be JSON, or @FILE of "
            "JSON.",
            "task.FIELD=VALUE, arch.FIELD=VALUE or solver.FIELD=VALUE",
            metavar="WHAT.FIELD=VALUE",
            keyword="settings",
        ),
    ] = ()
    params: Annotated[
        str | None,
        Option(
            "The best shape with this many parameters: 10k; fields that are set stay.",
            "a count such as 4096, 10k or 1.5M",
            metavar="COUNT",
            is_in_command=False,
        ),
    ] = None
    match: Annotated[
        str | None,
        Option(
            "Match the parameter count of another architecture at its defaults.",
            "an architecture's name",
            metavar="ARCH",
            is_in_command=False,
        ),
    ] = None
    preset: Annotated[str, Option(f"{', '.join(PRESETS)}.", "a preset's name", metavar="NAME")] = "standard"
    at: Annotated[Whole | None, Option("Measure the success rate at this load only.", WHOLE, metavar="LOAD")] = None
    minimize: Annotated[
        str | None,
        Option(
            "The least value of an architecture's field that holds the load --at.", "a field's name", metavar="PARAM"
        ),
    ] = None
    overload: Annotated[bool, Option("Facts held under overload, at --at LOAD or at all facts.", "true or false")] = (
        False
    )
    analyse: Annotated[
        bool,
        Option("Analyse each model at its end (triples: tensor ranks; mha on sequences: saturation).", "true or false"),
    ] = False
    precision: Annotated[
        bool,
        Option("Also round the weights of each model to 16 … 2 bits: the capacity at each.", "true or false"),
    ] = False
    protocol: Annotated[
        str,
        Option(f"Training protocol: {', '.join(PROTOCOL_NAMES)}.", "a protocol's name", metavar="NAME"),
    ] = "capbench"
    settle: Annotated[
        Share | None,
        ShareText,
        Option(
            "First extend the learning rates and double the steps, on seeds of their own, until a doubling raises the "
            "capacity by less than this share; 5% if none is given.",
            "a share above 0 and at most 1 such as 0.05 or 5%",
            metavar="[SHARE]",
            bare="5%",
            negation="--no-settle",
            is_in_command=False,
        ),
    ] = None
    seeds: Annotated[Whole | None, Option("Most seeds at any one load.", WHOLE, metavar="N")] = None
    first_seed: Annotated[
        int,
        BeforeValidator(_as_int),
        Field(ge=0, lt=1_000_000),
        Option(
            "Where the seeds start: another number repeats a measurement, and its selection, on other facts.",
            "a whole number from 0 to 999999",
            metavar="N",
        ),
    ] = 0
    budget: Annotated[Whole | None, Option("Most trials of a search. Default: the preset's.", WHOLE, metavar="N")] = (
        None
    )
    ci_width: Annotated[
        CiWidth,
        Option("Stop when the 95 % interval is within ± this share.", "a share from 0.001 to 10", metavar="SHARE"),
    ] = DEFAULT_CI_WIDTH
    rates: Annotated[
        tuple[Rate, ...],
        Field(strict=False),
        Option(
            "A learning rate to try; repeat for several. Default: the task's.",
            "numbers above 0",
            flag="--lr",
            metavar="RATE",
            keyword="learning_rates",
        ),
    ] = ()
    steps: Annotated[Whole | None, Option("Most training steps. Default: the task's.", WHOLE, metavar="N")] = None
    dtype: Annotated[
        Dtype | None,
        Option(
            "Precision; tf32 and bfloat16 apply to matrix products only. Default: the solver's.",
            "float32, float64, tf32, bfloat16 or None",
        ),
    ] = None
    solver: Annotated[str, Option("How weights are found.", "a solver's name", metavar="NAME", completes="solvers")] = (
        "adam"
    )

    def replaced(self, **values: Any) -> Self:
        """The same options with some values changed."""
        return type(self).model_validate({**dict(self), **values})


class RunOptions(MeasureOptions):
    """All options of `capbench run`: what is measured, where it is computed, and what the run is called."""

    device: Annotated[
        str, Option("auto, cpu, cuda, cuda:N or mps.", "a device's name", metavar="NAME", is_in_command=False)
    ] = ComputeTarget.device
    executor: Annotated[
        ExecutorName, Option("Train on this machine, or on a Ray cluster.", "local or ray", is_in_command=False)
    ] = ComputeTarget.executor
    address: Annotated[
        str,
        Option(
            "The Ray cluster: auto (the one on this machine), HOST:PORT or ray://HOST:PORT.",
            "auto, HOST:PORT or ray://HOST:PORT",
            metavar="ADDRESS",
            is_in_command=False,
        ),
    ] = ComputeTarget.address
    gpus: Annotated[
        float,
        Field(gt=0, le=1),
        Option(
            "Share of a GPU that a trial group takes on a Ray cluster: 0.5 puts two on each.",
            "a share of one GPU, above 0 and up to 1",
            metavar="SHARE",
            is_in_command=False,
        ),
    ] = ComputeTarget.gpus
    trial_timeout: Annotated[
        float,
        Field(ge=0, le=1e6),
        Option(
            "Fail a trial after this long without progress; 0: never.",
            "seconds from 0, which is never",
            metavar="SECONDS",
            is_in_command=False,
        ),
    ] = TRIAL_TIMEOUT
    compile_mode: Annotated[
        CompileMode,
        Option(
            "Compile the training step: auto for all but small requests (20,000 steps x trials), always, or never.",
            "auto, on or off",
            flag="--compile",
            is_in_command=False,
        ),
    ] = "auto"
    name: Annotated[
        str | None,
        Option(
            "Call the run so; `capbench results show` and `report` find it by this name.",
            "a name",
            metavar="TEXT",
            is_in_command=False,
        ),
    ] = None
    tags: Annotated[
        tuple[str, ...],
        Field(strict=False),
        Option(
            "Tag the run; `capbench results --tag` selects by it. May be repeated.",
            "words",
            flag="--tag",
            metavar="TEXT",
            is_in_command=False,
        ),
    ] = ()

    @property
    def target(self) -> ComputeTarget:
        """Where its trial groups run."""
        return ComputeTarget(self.device, self.executor, self.address, self.gpus)


TARGET_FIELDS = ("device", "executor", "address", "gpus")


def option_of(field: FieldInfo) -> Option:
    """How the option of a field is spelled and explained."""
    return next(each for each in field.metadata if isinstance(each, Option))


def flag_of(name: str) -> str:
    """An option as the command line spells it."""
    return option_of(RunOptions.model_fields[name]).flag or f"--{name.replace('_', '-')}"


def keyword_of(name: str) -> str:
    """An option as `capbench.run` spells it."""
    return option_of(RunOptions.model_fields[name]).keyword or name


def check_options(values: Mapping[str, Any], spelling: Callable[[str], str] = flag_of) -> RunOptions:
    """Options from their values by field; raises BadSetting with the option as the user spelled it."""
    try:
        return RunOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if name not in RunOptions.model_fields or first["type"] == "missing":
            raise BadSetting(f"{name}: {first['msg']}") from error
        takes, label = option_of(RunOptions.model_fields[name]).takes, spelling(name)
        verb = "take" if label.endswith("s") and takes.startswith("numbers") else "takes"
        raise BadSetting(f"{label} {verb} {takes}, got {first['input']!r}") from error


def command_flags(options: MeasureOptions) -> list[str]:
    """The command-line words of all options that are not defaults, but for --task, --arch and --set."""
    chosen = {
        name: value
        for name, value in options
        if name not in ("task", "arch", "set")
        and option_of(RunOptions.model_fields[name]).is_in_command
        and value != RunOptions.model_fields[name].default
    }
    single = {name: value for name, value in chosen.items() if not isinstance(value, bool | tuple)}
    words = [word for name, value in single.items() for word in (flag_of(name), str(value))]
    words += [flag_of(name) for name, value in chosen.items() if value is True]
    return words + [
        word
        for name, values in chosen.items()
        if isinstance(values, tuple)
        for value in values
        for word in (flag_of(name), f"{value:g}")
    ]


def parse_command(command: str) -> RunOptions:
    """The options of the command in a result document; raises BadDocument where `capbench run` would refuse it."""
    try:
        words = shlex.split(command)
        values = _parse_flags(words[words.index("run") + 1 :])
        return RunOptions.model_validate(values, strict=False)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise BadDocument(
            f"command: it must be a line that `capbench run` accepts: {reason}; take it from `capbench run`"
        ) from error


def _parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """Values by field from command-line words."""
    fields = {flag_of(name): (name, field) for name, field in RunOptions.model_fields.items()}
    values: dict[str, Any] = {}
    following: Iterator[str] = iter(words)
    for word in following:
        if word not in fields:
            raise ValueError(f"no option {word!r}")
        name, field = fields[word]
        if field.annotation is bool:
            values[name] = True
        elif isinstance(field.default, tuple):
            values.setdefault(name, []).append(next(following, ""))
        else:
            values[name] = next(following, "")
    return values
