"""The second run of a suite: some of its cells, drawn at random, measured again from choosing to end on other seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter, ValidationError

from capbench.documents.strict_json import read_result
from capbench.errors import BadSetting
from capbench.measure.options import Share, ShareText
from capbench.studies.records import CHECKS, PUBLISHED, CellName
from capbench.studies.suite import Suite
from capbench.studies.suite_run import PlannedCell, SuitePlan

DRAW_SEED = 0
"""Seed of the generator that draws the cells: nobody chooses them."""
FIRST_SEED = 500_000
"""Where the seeds of the second run start; those of the first start at 0."""


def parse_share(text: str) -> float:
    """The share of the cells from text such as 0.1 or 10%."""
    try:
        share: float = TypeAdapter(Annotated[Share, ShareText]).validate_python(text)
    except ValidationError:
        raise BadSetting(f"--recheck takes a share above 0 such as 0.1 or 10%, got {text!r}") from None
    return share


def default_check_folder() -> Path:
    """The default folder of the second run: beside the leaderboard's records, or else in the current folder."""
    return PUBLISHED.parent / CHECKS if PUBLISHED.is_dir() else Path(CHECKS)


def recorded_cells(folder: Path, suite: Suite) -> set[CellName]:
    """The cells of a suite's version that have a record in a folder of records."""
    found = [read_result(path) for path in (folder / suite.name).glob("*/*.json")]
    return {
        (result.task.name, result.architecture.name, result.suite.tier)
        for result in found
        if result.suite and (result.suite.name, result.suite.version) == (suite.name, suite.version)
    }


def recheck_plan(plan: SuitePlan, share: float, recorded: Collection[CellName]) -> SuitePlan:
    """A random share of the cells that have a record, on other seeds."""
    shuffled = random.Random(DRAW_SEED).sample(sorted(plan.cells, key=lambda cell: cell.name), len(plan.cells))
    candidates = [cell for cell in shuffled if cell.name in recorded]
    if not candidates:
        raise BadSetting("--recheck draws among the cells that have a record, got none; run the suite without it first")
    drawn = {cell.name for cell in candidates[: math.ceil(share * len(candidates))]}
    return SuitePlan(tuple(_on_other_seeds(cell) for cell in plan.cells if cell.name in drawn), ())


def _on_other_seeds(cell: PlannedCell) -> PlannedCell:
    options = cell.request.options.replaced(first_seed=FIRST_SEED)
    return replace(cell, request=replace(cell.request, options=options))
