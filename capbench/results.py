"""The result document: what a run prints, the store keeps and a leaderboard reads. No torch here."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Share = Annotated[float, Field(ge=0, le=1)]


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
    version: int
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
    seeds: int = Field(description="most seeds at any one load")
    learning_rates: tuple[float, ...]
    steps: int = Field(description="most training steps of a trial")
    dtype: str
    ci_width: float
    mode: Literal["capacity", "at", "minimize", "overload"]
    at: int | None = Field(None, description="the load, where it is given rather than searched for")
    parameter: str | None = Field(None, description="the architecture's field that --minimize searches over")
    limits: tuple[int, int] = Field(description="first and last value of the axis searched")
    unit: int = Field(1, description="the axis has only multiples of this")
    confidence: float = Field(0.95, gt=0, lt=1)
    analyses: bool = Field(False, description="whether each trained model was analysed by its task")
    varies: str = Field("data and initial weights", description="what differs between seeds")


FACTS_HELD = "facts_held"
"""The metric that holds the overload reading, on tasks that have one."""


class Trial(Record):
    """One model, one problem, one seed, one learning rate."""

    key: str
    load: int
    seed: int
    learning_rate: float | None
    status: TrialStatus
    steps: int
    metrics: dict[str, float]
    data: dict[str, float] = Field({}, description="what was found of the generated data itself")
    budget: int | None = Field(None, description="value of the minimised parameter")
    error: str | None = None


class Capacity(Record):
    """The answer: a number with its interval; an open end is null."""

    kind: Literal["largest_load", "least_budget", "success_rate", "overload"]
    estimate: float
    ci_low: float | None
    ci_high: float | None
    confidence: float
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


class Environment(Record):
    """Where the numbers come from."""

    capbench: str
    python: str
    torch: str
    device: str
    device_name: str
    threads: int
    platform: str
    plugins: tuple[InstalledPlugin, ...]


class Timing(Record):
    """What it cost."""

    wall_seconds: float
    train_seconds: float
    compile_seconds: float
    lane_steps: int
    trials_trained: int
    trials_reused: int


class Result(Record):
    """One run, raw trials included; every summary in it is derived from them."""

    schema_version: Literal[1] = 1
    run_id: str
    command: str = Field(description="what to type to repeat it")
    task: PluginRef
    architecture: PluginRef
    solver: PluginRef
    protocol: Protocol
    n_parameters: int
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
