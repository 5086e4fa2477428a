"""Forecasts: power laws fitted to some sweeps, frozen with a hash and a date before other sweeps are run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.stats import t as student_t

from capbench.documents.files import write_whole
from capbench.documents.result import Record
from capbench.documents.strict_json import read_document
from capbench.errors import BadDocument, BadSetting

CONFIDENCE = 0.95
FEWEST_POINTS = 3
"""Points that a power law with an interval needs."""


class PowerLaw(Record):
    """y = c·x^p by least squares of log y on log x, with what a prediction interval needs."""

    c: float
    p: float
    p_low: float
    p_high: float
    n_points: int
    spread: float = Field(description="standard deviation of the residuals of log y")
    mean_log_x: float
    sum_squares: float = Field(description="of log x about its mean")

    def predict(self, x: float) -> tuple[float, float, float]:
        """The prediction at x with its interval for one new point."""
        middle, off = math.log(self.c) + self.p * math.log(x), math.log(x) - self.mean_log_x
        error = self.spread * math.sqrt(1 + 1 / self.n_points + off**2 / self.sum_squares)
        half = _quantile(self.n_points) * error
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


class Predicted(Record):
    """What is predicted of one point."""

    sweep: str
    values: dict[str, str] = Field(description="grid values of the point")
    n_parameters: int
    value: float
    low: float
    high: float


class Forecast(Record):
    """The law of one claim, and what it predicts."""

    claim: str
    y: str
    law: PowerLaw
    predictions: tuple[Predicted, ...]


class FrozenForecasts(Record):
    """The file in which forecasts are frozen."""

    schema_version: Literal[1] = 1
    recipe: str
    size: str
    frozen: str = Field(description="date and time in UTC")
    forecasts: tuple[Forecast, ...]
    hash: str = Field(description="SHA-256 of all other fields")


def fit_power(points: Sequence[tuple[float, float]]) -> PowerLaw | None:
    """The power law through (x, y) points; None for too few points, or fewer than two values of x."""
    usable = [(x, y) for x, y in points if x > 0 and y > 0]
    if len(usable) < FEWEST_POINTS or len({x for x, _ in usable}) < 2:
        return None
    x, y = np.log(np.array(usable)).T
    off = x - x.mean()
    sum_squares = float(off @ off)
    p = float(off @ y) / sum_squares
    intercept = float(y.mean() - p * x.mean())
    residuals = y - intercept - p * x
    spread = math.sqrt(float(residuals @ residuals) / (len(usable) - 2))
    half = _quantile(len(usable)) * spread / math.sqrt(sum_squares)
    return PowerLaw(
        c=math.exp(intercept),
        p=p,
        p_low=p - half,
        p_high=p + half,
        n_points=len(usable),
        spread=spread,
        mean_log_x=float(x.mean()),
        sum_squares=sum_squares,
    )


def _quantile(n_points: int) -> float:
    return float(student_t.ppf((1 + CONFIDENCE) / 2, n_points - 2))


def freeze_forecasts(recipe: str, size: str, forecasts: Sequence[Forecast]) -> FrozenForecasts:
    """The forecasts with the present date and their hash."""
    content = {
        "schema_version": 1,
        "recipe": recipe,
        "size": size,
        "frozen": datetime.now(UTC).isoformat(timespec="seconds"),
        "forecasts": [forecast.model_dump(mode="json") for forecast in forecasts],
    }
    return FrozenForecasts.model_validate({**content, "hash": _hash(content)})


def keep_frozen(path: Path, frozen: FrozenForecasts) -> FrozenForecasts:
    """Writes forecasts to a new file; where there is one already, its forecasts count and are returned."""
    if not path.exists():
        write_whole(path, frozen.model_dump_json(indent=1) + "\n")
        return frozen
    earlier = read_forecasts(path)
    if (earlier.size, _targets(earlier)) != (frozen.size, _targets(frozen)):
        raise BadSetting(f"{path} has forecasts of other points; name another folder with --out, or delete it")
    return earlier


def read_forecasts(path: Path) -> FrozenForecasts:
    """Reads forecasts; refuses a file that was changed since."""
    frozen = read_document(path, FrozenForecasts, "write it with `capbench reproduce`")
    if not is_unchanged(frozen):
        raise BadDocument(f"{path}: its hash is not that of its content; it was changed after it was frozen")
    return frozen


def is_unchanged(frozen: FrozenForecasts) -> bool:
    """Whether forecasts are those that the hash was made of."""
    return _hash(frozen.model_dump(mode="json", exclude={"hash"})) == frozen.hash


def _targets(frozen: FrozenForecasts) -> list[tuple[str, str, str, dict[str, str]]]:
    """Which claims predict what of which points."""
    return [(each.claim, each.y, p.sweep, p.values) for each in frozen.forecasts for p in each.predictions]


def _hash(content: Mapping[str, object]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
