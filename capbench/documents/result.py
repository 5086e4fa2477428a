"""The result document: what a run prints, the store keeps and a leaderboard reads. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from capbench.contract.bound import D_K
from capbench.contract.task import Criterion

MAX_WHOLE = 2**53
"""Whole numbers up to this are exact as floating-point numbers, and in a browser."""
MAX_SIZE = 1e15
"""Greatest capacity, load or time of a document; far above any real one, and far below where arithmetic overflows."""

Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Field(ge=1, le=MAX_WHOLE)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SIZE)]
Amount = Annotated[float, Field(ge=0, le=MAX_SIZE)]
Signed = Annotated[float, Field(ge=-MAX_SIZE, le=MAX_SIZE)]
Rate = Annotated[float, Field(gt=0, le=MAX_SIZE)]
LearningRate = Annotated[float, Field(gt=0, le=1e100)]
Share = Annotated[float, Field(gt=0, lt=1)]


RatioStatus = Literal["estimated", "at_least", "at_most", "unknown"]
"""What is known of the ratio of two capacities: both sides, one side, or nothing."""


class Record(BaseModel):
    """Base of all parts of the document: frozen, without unknown fields, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrialStatus(StrEnum):
    """How a trial ended."""

    HELD = "held"
    """The criterion was met."""
    NOT_HELD = "not_held"
    """All steps were taken and the criterion was not met."""
    PLATEAU = "plateau"
    """Stopped early: the metric had stopped changing short of the criterion."""
    DIVERGED = "diverged"
    """The loss became NaN or infinite."""
    FAILED = "failed"
    """The plugin raised; `error` says what."""


class PluginRef(Record):
    """A plugin and the configuration it ran with."""

    name: str
    version: Count
    params: dict[str, JsonValue]
    plugin: str = Field(description="distribution and version that provided it")
    code_hash: str


class ShapeTried(Record):
    """A shape that was compared with others of about as many parameters, and how it did on the selection seeds."""

    params: dict[str, JsonValue] = Field(description="all fields of the architecture")
    n_parameters: Positive
    estimate: Amount = Field(description="capacity by its few trials; 0 where all of them failed")
    trials: Count


class ArchitectureRef(PluginRef):
    """An architecture, its configuration, its family, and the shapes that it was chosen from."""

    family: str = Field("", description="the group under which charts and tables show it; empty in older documents")
    shapes_tried: tuple[ShapeTried, ...] = Field(
        (), description="under --params and --match, the shapes compared on seeds of their own, the chosen one first"
    )
    state_size: Positive | None = Field(
        None, description="elements carried from token to token, where facts are in the context; null where unknown"
    )


def shape_fields(shapes: Sequence[Mapping[str, object]]) -> list[str]:
    """The fields in which shapes differ."""
    return [name for name in (shapes[0] if shapes else ()) if any(each.get(name) != shapes[0][name] for each in shapes)]


class Protocol(Record):
    """How trials were trained and the search was run."""

    name: str = Field("capbench", description="whose training protocol")
    preset: str
    criterion: Criterion
    seeds: Positive = Field(description="most seeds at any one load")
    budget: Positive | None = Field(None, description="most trials of a search, counted at the leading rate")
    learning_rates: tuple[LearningRate, ...]
    steps: Positive = Field(description="most training steps of a trial")
    dtype: str
    ci_width: Rate
    mode: Literal["capacity", "at", "minimize", "overload"]
    at: Positive | None = Field(None, description="the load, where it is given rather than searched for")
    parameter: str | None = Field(None, description="the architecture's field that --minimize searches over")
    limits: tuple[Positive, Positive] = Field(description="first and last value of the axis searched")
    unit: Positive = Field(1, description="step of the axis: it has only multiples of this")
    confidence: Share = 0.95
    analyses: bool = Field(False, description="whether each model was analysed by its task and architecture")
    varies: str = Field("data and initial weights", description="what differs between seeds")
    estimator: Positive = Field(
        1, description="version of the search and of the estimator; 1 in documents written before this field"
    )

    precisions: tuple[Positive, ...] = Field(
        (), description="bits per weight to which every trained model was also rounded (--precision)"
    )

    @model_serializer(mode="wrap")
    def _without_later_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out fields that earlier documents lack, so that these keep their run_id, a hash of this text."""
        fields: dict[str, Any] = handler(self)
        if self.estimator == 1:
            fields.pop("estimator", None)
        if not self.precisions:
            fields.pop("precisions", None)
        return fields


BITS = "bits"
CONTEXT_BITS = "context_bits"
"""The metric of facts in the context that counts the bits carried to its end."""
"""The metric of the information held, which every task reports: a sum over all facts."""
FACTS_HELD = "facts_held"
"""The metric of the overload measurement, on tasks that have one."""


def rounded_name(metric: str, bits: int) -> str:
    """The name in `Trial.data` of a metric after the weights were rounded to so many bits."""
    return f"{metric}_rounded_to_{bits}_bits"


LEAD_FLOOR = 2**-7
"""A solver's capacity counts from this lead on: the spacing of bfloat16 numbers at the scale of the logits."""
LEAD = "lead"
LEAD_IN_BFLOAT16 = "lead_in_bfloat16"
"""In `Trial.data` of explicit weights: the share of the logit scale by which right answers lead, and the same after the
logits are rounded to bfloat16."""


def quality_names(metric: str) -> tuple[str, ...]:
    """The names in `Trial.data` that say how good explicit weights are."""
    rounded = f"{metric}_in_float32", f"{metric}_with_bfloat16_weights"
    return LEAD, LEAD_IN_BFLOAT16, *rounded, "largest_weight", "condition_number"


class Trial(Record):
    """One model, one problem, one seed, one learning rate."""

    key: str
    load: Positive
    seed: Count
    learning_rate: LearningRate | None
    status: TrialStatus
    steps: Count
    metrics: dict[str, float]
    data: dict[str, float] = Field({}, description="measurements of the generated data")
    budget: Positive | None = Field(None, description="value of the minimised parameter")
    compiled: bool = Field(False, description="whether its training step was compiled")
    limit: Positive | None = Field(None, description="most steps of a trial of the selection")
    error: str | None = None

    @property
    def at(self) -> int:
        """The point on the searched axis: the load, or the value of the minimised parameter under --minimize."""
        return self.load if self.budget is None else self.budget

    @property
    def reason(self) -> str:
        """The last line of the error."""
        return ((self.error or "").strip() or "no message").splitlines()[-1]


class CapacityAtSteps(Record):
    """The capacity at a number of steps, from the trials of the selection."""

    steps: Positive
    estimate: Amount
    ci_low: Signed | None
    ci_high: Signed | None


class Capacity(Record):
    """The measured capacity with its interval; an open end is null."""

    kind: Literal["largest_load", "least_budget", "success_rate", "overload"]
    estimate: Amount
    ci_low: Signed | None
    ci_high: Signed | None
    confidence: Share
    status: Literal["estimated", "at_least", "below"]
    parameter: str | None = None
    limited_by: Literal["axis", "search"] | None = Field(
        None, description="why only one side is known: the axis ends there, or the search stopped there"
    )
    raised_by: str | None = Field(
        None, description="the task's field that allows more facts, where all that there are are held"
    )
    settled: bool | None = Field(
        None, description="whether doubling the steps raised it by less than the share asked for; null if not asked"
    )
    drift: Signed | None = Field(None, description="share by which the last doubling of the steps raised it")
    by_steps: tuple[CapacityAtSteps, ...] = Field((), description="the capacity at each number of steps tried")
    d_qk_total: Amount | None = Field(None, description="D_K at the estimate, where the architecture has heads")
    d_qk_total_low: Amount | None = None
    d_qk_total_high: Amount | None = None

    def ratio_status(self, other: Capacity) -> RatioStatus:
        """What is known of this capacity divided by another one."""
        may_be_more = self.status == "at_least" or other.status == "below"
        may_be_less = self.status == "below" or other.status == "at_least"
        if may_be_more and may_be_less:
            return "unknown"
        return "at_least" if may_be_more else "at_most" if may_be_less else "estimated"


class Reading(Record):
    """The same trials read in another way; an open end is null."""

    name: Literal["half", "any_seed", "lax", "perfect", "most_bits"]
    unit: Literal["facts", "bits"]
    estimate: Amount
    ci_low: Signed | None
    ci_high: Signed | None
    status: Literal["estimated", "at_least", "below"]
    note: str = Field("", description="what is read, and what limits it")


class PrecisionPoint(Record):
    """The capacity after rounding every trained tensor to some bits per weight: per tensor, symmetric about 0."""

    weight_bits: Positive
    capacity: Capacity
    bits_per_parameter: Signed | None = Field(
        None, description="the capacity in bits, at the bits per fact of the unrounded models, per parameter"
    )
    readings: tuple[Reading, ...] = Field((), description="other readings of the same rounded models")


class RateWindow(Record):
    """The learning rates that work, and the one at which the capacity was measured."""

    best: LearningRate
    tried: tuple[LearningRate, ...]
    working: tuple[LearningRate, ...] = Field(
        description="rates that met the criterion at least half as often as the best"
    )
    pruned: tuple[LearningRate, ...] = Field((), description="rates dropped during the search because others held more")


class Selection(Record):
    """The trials by which learning rate and steps were chosen, on seeds that the measurement does not use."""

    version: Positive = Field(description="of the protocol by which they were chosen")
    share: float = Field(gt=0, le=1, description="settled: a doubling of the steps raises the capacity by less")
    first_seed: Count
    rates: RateWindow | None = Field(description="the learning rates that work at the chosen number of steps")
    trials: tuple[Trial, ...]


class Constructed(Record):
    """What a constructive solver reaches on the same pair, scored in the same way."""

    solver: PluginRef
    capacity: Capacity
    above_floor: Capacity | None = Field(
        None, description="the capacity where right answers must lead by LEAD_FLOOR; null in older documents"
    )
    trials: tuple[Trial, ...]

    @property
    def counted(self) -> Capacity:
        """The capacity above the margin floor; where no lead was measured, the capacity as it is."""
        return self.above_floor or self.capacity


class BoundRecord(Record):
    """A bound evaluated for this pair, and the measurement of the same quantity."""

    id: str
    kind: Literal["lower", "upper", "law", "exact"]
    quantity: str
    value: float | None
    lower_is_better: bool | None = Field(
        None, description="whether less of the quantity is better; null in documents written before this field"
    )
    measured: float | None = None
    ratio: float | None = Field(None, description="measured / value; null for a law")
    constant: float | None = Field(None, description="a law's constant, implied by this one measurement")
    pedigree: Literal["paper", "code", "derived", "protocol"]
    citation: str
    holds: bool | None = None
    note: str = ""
    reason: str | None = Field(None, description="why it does not apply")

    @property
    def is_floor(self) -> bool:
        """Whether an upper bound of this quantity is a floor, because less of it is better."""
        return self.quantity == D_K if self.lower_is_better is None else self.lower_is_better


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
    """A plugin that a worker trained with; its code is the same as the driver's."""

    name: str
    plugin: str = Field(description="distribution and version that provided it")
    code_hash: str


class Worker(Machine):
    """A process of a cluster that trained trials of the run; identical ones on one node are counted as one."""

    node: str = Field(description="the cluster's id of its node")
    plugins: tuple[WorkerPlugin, ...]
    trials: Count = Field(0, description="trials that it trained")


def merge_workers(workers: Iterable[Worker]) -> list[Worker]:
    """Identical workers as one, with the sum of their trials."""
    trials: dict[Worker, int] = {}
    for worker in workers:
        same = worker.model_copy(update={"trials": 0})
        trials[same] = trials.get(same, 0) + worker.trials
    return [worker.model_copy(update={"trials": count}) for worker, count in trials.items()]


class Environment(Machine):
    """The machine and the plugins that the numbers come from."""

    plugins: tuple[InstalledPlugin, ...]
    workers: tuple[Worker, ...] = Field((), description="the processes that trained, where this one did not")


class Timing(Record):
    """What the run cost."""

    wall_seconds: Seconds
    train_seconds: Seconds
    compile_seconds: Seconds
    lane_steps: Count
    """Training steps, summed over the models."""
    compiled_lane_steps: Count = 0
    """Those of them that were compiled."""
    eager_reasons: tuple[str, ...] = ()
    """Why steps that were to be compiled ran eagerly."""
    trials_trained: Count
    trials_reused: Count
    grid_trials: Count = 0
    """Trials that a fixed grid of the same resolution would take; 0 where nothing is searched."""
    phases: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds by phase."""


TierUnit = Literal["parameters", "state"]
"""What the tiers of a suite count."""


class SuiteCell(Record):
    """The suite and the tier that a run belongs to."""

    name: str
    version: Count
    tier: Positive = Field(description="the intended number of parameters, or of elements of state")
    unit: TierUnit = Field("parameters", description="what the tier counts; left out where it is parameters")
    settle: float | None = Field(
        None, gt=0, le=1, description="the share to which the suite settles capacities; null where it does not"
    )

    @model_serializer(mode="wrap")
    def _without_usual_unit(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves parameters out, so that documents written before the field stay as they are."""
        fields: dict[str, Any] = handler(self)
        if self.unit == "parameters":
            fields.pop("unit", None)
        return fields


class MissingRecord(Record):
    """A cell of a suite without a result, and why."""

    task: str
    architecture: str
    tier: Count
    reason: str


class Result(Record):
    """One run with its raw trials, from which every summary in it is derived."""

    schema_version: Literal[1] = 1
    run_id: str
    command: str = Field(description="the command that repeats it")
    name: str = Field("", description="what its user calls it")
    tags: tuple[str, ...] = Field((), description="words by which its user finds it again")
    suite: SuiteCell | None = Field(None, description="the suite that the run belongs to, if any")
    task: PluginRef
    architecture: ArchitectureRef
    solver: PluginRef
    protocol: Protocol
    n_parameters: Positive
    capacity: Capacity
    above_floor: Capacity | None = Field(
        None, description="of explicit weights, the capacity where right answers must lead by LEAD_FLOOR"
    )
    readings: tuple[Reading, ...] = Field((), description="other readings of the same trials, beside the capacity")
    precision: tuple[PrecisionPoint, ...] = Field(
        (), description="the capacity after rounding the weights, under --precision; most bits first"
    )
    bits: Signed
    bits_per_parameter: Signed
    metrics: dict[str, float] = Field(description="means over the trials at the load nearest to the capacity")
    data: dict[str, float] = Field({}, description="measurements of the data and the models, means at the same load")
    rates: RateWindow | None
    constructed: Constructed | None = Field(None, description="what explicit weights reach on the same pair")
    bounds: tuple[BoundRecord, ...]
    trials: tuple[Trial, ...]
    selection: Selection | None = None
    environment: Environment
    timing: Timing

    @property
    def counted_construction(self) -> Capacity | None:
        """What explicit weights reach above the margin floor, whether they are the run or stand beside it."""
        if self.rates is None:
            return self.above_floor or self.capacity
        return self.constructed.counted if self.constructed else None
