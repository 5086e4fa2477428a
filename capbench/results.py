"""The result document: what a run prints, the store keeps and a leaderboard reads. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """Base of all parts of the document: frozen, closed, and free of NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrialStatus(StrEnum):
    """How a trial ended."""

    HELD = "held"
    """The criterion was met."""
    NOT_HELD = "not_held"
    """All steps were taken and the criterion was not met."""
    PLATEAU = "plateau"
    """Stopped early: the metric had long stopped moving, short of the criterion."""
    DIVERGED = "diverged"
    """The loss left the finite numbers."""
    FAILED = "failed"
    """The plugin raised; `error` says what."""


class PluginRef(Record):
    """A plugin with the configuration it ran under."""

    name: str
    version: Count
    params: dict[str, JsonValue]
    plugin: str = Field(description="distribution and version that provided it")
    code_hash: str


class CriterionRecord(Record):
    """When a trial holds its facts."""

    metric: str
    threshold: float
    at_least: bool = True

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.at_least else '≤'} {self.threshold:g}"


class Protocol(Record):
    """How trials were trained and the search was run."""

    name: str = Field("capbench", description="whose training protocol")
    preset: str
    criterion: CriterionRecord
    seeds: Positive = Field(description="most seeds at any one load")
    budget: Positive | None = Field(None, description="most trials of a search, counted at the leading rate")
    learning_rates: tuple[float, ...]
    steps: Positive = Field(description="most training steps of a trial")
    dtype: str
    ci_width: float
    mode: Literal["capacity", "at", "minimize", "overload"]
    at: Positive | None = Field(None, description="the load, where it is given rather than searched for")
    parameter: str | None = Field(None, description="the architecture's field that --minimize searches over")
    limits: tuple[int, int] = Field(description="first and last value of the axis searched")
    unit: Positive = Field(1, description="the axis has only multiples of this")
    confidence: float = Field(0.95, gt=0, lt=1)
    analyses: bool = Field(False, description="whether each model was analysed by its task and architecture")
    varies: str = Field("data and initial weights", description="what differs between seeds")


FACTS_HELD = "facts_held"
"""The metric that holds the overload reading, on tasks that have one."""


class Trial(Record):
    """One model, one problem, one seed, one learning rate."""

    key: str
    load: Positive
    seed: Count
    learning_rate: float | None
    status: TrialStatus
    steps: Count
    metrics: dict[str, float]
    data: dict[str, float] = Field({}, description="what was found of the generated data itself")
    budget: int | None = Field(None, description="value of the minimised parameter")
    error: str | None = None

    @property
    def reason(self) -> str:
        """Why it failed: the last line of the error."""
        return ((self.error or "").strip() or "no message").splitlines()[-1]


class Capacity(Record):
    """The answer: a number with its interval; an open end is null."""

    kind: Literal["largest_load", "least_budget", "success_rate", "overload"]
    estimate: float
    ci_low: float | None
    ci_high: float | None
    confidence: float = Field(gt=0, lt=1)
    status: Literal["estimated", "at_least", "below"]
    parameter: str | None = None
    d_qk_total: float | None = Field(None, description="D_K at the estimate, where the architecture has heads")
    d_qk_total_low: float | None = None
    d_qk_total_high: float | None = None


class RateWindow(Record):
    """Which learning rates work, and which one the capacity was measured at."""

    best: float
    tried: tuple[float, ...]
    working: tuple[float, ...] = Field(description="rates that met the criterion at least half as often as the best")
    pruned: tuple[float, ...] = Field((), description="rates dropped on the way because others held more")


class Constructed(Record):
    """What a constructive solver reaches on the same pair, by the same scorer."""

    solver: PluginRef
    capacity: Capacity
    trials: tuple[Trial, ...]


class BoundRecord(Record):
    """A bound evaluated for this pair, next to what was measured."""

    id: str
    kind: Literal["lower", "upper", "law"]
    quantity: str
    value: float | None
    measured: float | None = None
    ratio: float | None = Field(None, description="measured / value; null for a law")
    constant: float | None = Field(None, description="a law's constant, implied by this one measurement")
    pedigree: Literal["paper", "code", "derived", "protocol"]
    citation: str
    holds: bool | None = None
    note: str = ""
    reason: str | None = Field(None, description="why it does not apply")


class InstalledPlugin(Record):
    """A plugin that was loaded when the run was made."""

    entry_point: str
    distribution: str
    version: str
    module: str


class Machine(Record):
    """Versions and hardware of a process that trains."""

    capbench: str
    engine: Count | None = Field(None, description="version of the engine's numbers, a part of every trial's key")
    python: str
    torch: str
    device: str
    device_name: str
    threads: Count
    platform: str


class WorkerPlugin(Record):
    """A plugin that a worker trained with; its code was the same as the driver's."""

    name: str
    plugin: str = Field(description="distribution and version that provided it")
    code_hash: str


class Worker(Machine):
    """A process of a cluster that trained trials of the run; those of a node that are alike count as one."""

    node: str = Field(description="the cluster's id of its node")
    plugins: tuple[WorkerPlugin, ...]
    trials: Count = Field(0, description="trials that it trained")


def merged(workers: Iterable[Worker]) -> list[Worker]:
    """Workers that are alike as one, with the trials of all."""
    trials: dict[Worker, int] = {}
    for worker in workers:
        alike = worker.model_copy(update={"trials": 0})
        trials[alike] = trials.get(alike, 0) + worker.trials
    return [worker.model_copy(update={"trials": count}) for worker, count in trials.items()]


class Environment(Machine):
    """Where the numbers come from."""

    plugins: tuple[InstalledPlugin, ...]
    workers: tuple[Worker, ...] = Field((), description="who trained, where this process did not")


class Timing(Record):
    """What it cost."""

    wall_seconds: Seconds
    train_seconds: Seconds
    compile_seconds: Seconds
    lane_steps: Count
    """Steps of single models."""
    compiled_lane_steps: Count = 0
    """Those of them that ran in a compiled step."""
    trials_trained: Count
    trials_reused: Count
    grid_trials: Count = 0
    """Trials that a fixed grid of the same resolution would have taken; 0 where nothing is searched."""
    phases: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds by what they were spent on."""


class SuiteRecord(Record):
    """The place of a run in a suite."""

    name: str
    version: int
    tier: int = Field(description="the number of parameters aimed at")


class MissingRecord(Record):
    """A place in a suite without a result, and why."""

    task: str
    architecture: str
    tier: int
    reason: str


class Result(Record):
    """One run, raw trials included; every summary in it is derived from them."""

    schema_version: Literal[1] = 1
    run_id: str
    command: str = Field(description="what to type to repeat it")
    suite: SuiteRecord | None = Field(None, description="the suite that asked for the run, if one did")
    task: PluginRef
    architecture: PluginRef
    solver: PluginRef
    protocol: Protocol
    n_parameters: Positive
    capacity: Capacity
    bits: float
    bits_per_parameter: float
    metrics: dict[str, float] = Field(description="means over the trials at the load nearest to the capacity")
    data: dict[str, float] = Field({}, description="what was found of the data and the models, means at the same load")
    rates: RateWindow | None
    constructed: Constructed | None = Field(None, description="what explicit weights reach on the same pair")
    bounds: tuple[BoundRecord, ...]
    trials: tuple[Trial, ...]
    environment: Environment
    timing: Timing
