"""Frozen predictions: what theories say before cells are measured, with a hash and a date, and how they did."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from capbench import __version__
from capbench.contract.bound import Bound, Kind
from capbench.documents.files import write_whole
from capbench.documents.result import Record
from capbench.documents.strict_json import read_document
from capbench.errors import BadDocument, BadSetting
from capbench.registry.provenance import code_hash
from capbench.registry.registry import Provided
from capbench.studies.theories.cells import MeasuredCell
from capbench.studies.theories.judge import judge, try_bound
from capbench.studies.theories.judged import BoundOnCells, Contradiction, JudgedCell, LawLimits
from capbench.studies.theories.laws import geometric_mean, rms, series_name, series_of


class Prediction(Record):
    """What one theory predicts of cells that are not measured yet."""

    bound: str
    kind: Literal["lower", "upper", "law", "exact"]
    code_hash: str
    """Of the bound's code, which gives the values."""
    params: dict[str, JsonValue]
    constant: float | None = None
    """Of a law, over all series: for series that had no cell."""
    series: dict[str, float] = Field(default_factory=dict)
    """Constants of a law by series."""


class FrozenPredictions(Record):
    """The file that `--freeze` writes."""

    schema_version: Literal[1] = 1
    frozen: str
    """Date and time in UTC."""
    capbench: str
    max_error: float
    """A law is rejected if its predictions err more: rms of log(measured / predicted)."""
    seen: tuple[str, ...]
    """The runs that the constants were fitted to."""
    predictions: tuple[Prediction, ...]
    hash: str
    """SHA-256 of all other fields."""


class ScoreRow(Record):
    """How the predictions of one theory did on the cells measured since."""

    bound: str
    kind: Literal["lower", "upper", "law", "exact"]
    cells: int
    applies: int
    judged: int
    violations: int
    gaps: int
    heldout_error: float | None = None
    """Of a law: rms of log(measured / predicted)."""
    verdict: Literal["holds", "gaps", "broken", "rejected", "compared", "untested", "failed", "changed"]
    contradictions: tuple[Contradiction, ...] = ()
    note: str = ""


def freeze(bounds: Iterable[type[Bound]], cells: Sequence[MeasuredCell], limits: LawLimits) -> FrozenPredictions:
    """Predictions of every bound, with the constants of laws fitted to the cells there are."""
    content: dict[str, JsonValue] = {
        "schema_version": 1,
        "frozen": datetime.now(UTC).isoformat(timespec="seconds"),
        "capbench": __version__,
        "max_error": limits.error,
        "seen": list[JsonValue](sorted(cell.result.run_id for cell in cells)),
        "predictions": [_prediction(bound(), cells).model_dump(mode="json") for bound in bounds],
    }
    return FrozenPredictions.model_validate({**content, "hash": _hash(content)})


def write_frozen(path: Path, frozen: FrozenPredictions) -> None:
    """Writes predictions to a new file: those of an earlier day are never replaced."""
    if path.exists():
        raise BadSetting(f"--freeze writes a new file, {str(path)!r} exists; name another one")
    write_whole(path, frozen.model_dump_json(indent=1) + "\n", "name another file with --freeze")


def read_frozen(path: Path) -> FrozenPredictions:
    """Reads predictions; refuses a file that was changed since."""
    frozen = read_document(path, FrozenPredictions, "write it with `capbench theories --freeze FILE`")
    content = frozen.model_dump(mode="json", exclude={"hash"})
    if _hash(content) != frozen.hash:
        raise BadDocument(f"{path}: its hash is not that of its content; it was changed after it was frozen")
    return frozen


def new_cells(frozen: FrozenPredictions, cells: Iterable[MeasuredCell]) -> list[MeasuredCell]:
    """The cells measured since: not among those seen, and not stored before, where a date is known."""
    since = [cell for cell in cells if cell.result.run_id not in frozen.seen]
    return [cell for cell in since if cell.created is None or cell.created >= frozen.frozen]


def score(
    frozen: FrozenPredictions,
    bounds: Mapping[str, Provided[Bound]],
    cells: Sequence[MeasuredCell],
    names: Collection[str] = (),
) -> list[ScoreRow]:
    """The predictions of all bounds, or of those named, against the cells measured since."""
    own = [each for each in frozen.predictions if each.bound in names or not names]
    return [_score_one(each, bounds, cells, frozen.max_error) for each in own]


def _prediction(bound: Bound, cells: Sequence[MeasuredCell]) -> Prediction:
    prediction = Prediction(
        bound=bound.name,
        kind=bound.kind.value,
        code_hash=code_hash(type(bound)),
        params=bound.model_dump(mode="json"),
    )
    if bound.kind is not Kind.LAW:
        return prediction
    judged = try_bound(bound, cells).judged
    constants = {name: geometric_mean(own) for name, own in series_of(judged).items()}
    return prediction.model_copy(update={"constant": geometric_mean(judged), "series": constants})


def _score_one(
    prediction: Prediction, bounds: Mapping[str, Provided[Bound]], cells: Sequence[MeasuredCell], max_error: float
) -> ScoreRow:
    if prediction.bound not in bounds:
        return _unscored(prediction, cells, "it is not installed here; name its file with --plugin")
    cls = bounds[prediction.bound].cls
    if code_hash(cls) != prediction.code_hash or cls().model_dump(mode="json") != prediction.params:
        return _unscored(prediction, cells, "its code or its fields are not those that were frozen")
    if prediction.kind == "law":
        return _score_law(prediction, try_bound(cls(), cells), max_error)
    (row,) = judge([cls], cells, LawLimits())
    return ScoreRow(**{name: getattr(row, name) for name in ScoreRow.model_fields if hasattr(row, name)})


def _score_law(prediction: Prediction, found: BoundOnCells, max_error: float) -> ScoreRow:
    """A law by its frozen constants: that of the cell's series, or else that of all series."""
    errors = {
        each.cell.result.run_id: (each, _error(each, constant))
        for each in found.judged
        if (constant := prediction.series.get(series_name(each), prediction.constant)) is not None
    }
    error = rms([off for _, off in errors.values()])
    is_rejected = error is not None and error > max_error
    against = [
        each.against(f"measured / predicted = {math.exp(off):.3g}; rms error {error:.3g}, allowed: {max_error:g}")
        for each, off in errors.values()
        if is_rejected and abs(off) > max_error
    ]
    n_other = sum(series_name(each) not in prediction.series for each, _ in errors.values())
    return ScoreRow(
        bound=prediction.bound,
        kind="law",
        cells=found.n_cells,
        applies=found.n_applies,
        judged=len(errors),
        violations=len(against),
        gaps=0,
        heldout_error=error,
        verdict="failed" if found.has_failed else "rejected" if is_rejected else "holds" if errors else "untested",
        contradictions=tuple(against),
        note=f"{n_other} cells of series that had none were predicted by the constant of all" if n_other else "",
    )


def _unscored(prediction: Prediction, cells: Sequence[MeasuredCell], note: str) -> ScoreRow:
    return ScoreRow(
        bound=prediction.bound,
        kind=prediction.kind,
        cells=len(cells),
        applies=0,
        judged=0,
        violations=0,
        gaps=0,
        verdict="changed",
        note=note,
    )


def _error(judged: JudgedCell, constant: float) -> float:
    """log(measured / predicted)."""
    return math.log(judged.ratio / constant)


def _hash(content: Mapping[str, JsonValue]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
