"""The points of a fit: two quantities of each result, read from a file or the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import RootModel

from capbench.documents.expressions import evaluate_on
from capbench.documents.result import Result
from capbench.documents.strict_json import read_document, read_result
from capbench.errors import BadDocument, BadSetting
from capbench.store.store import Store


class ResultList(RootModel[tuple[Result, ...]]):
    """The output of `capbench sweep --json`."""


def read_results(path: Path) -> list[Result]:
    """The results in a file: a list of documents, or a single one."""
    try:
        with path.open("rb") as file:
            is_list = file.read(64).lstrip().startswith(b"[")
    except OSError as error:
        raise BadDocument(f"{path}: must be a readable file of results: {error}") from error
    return list(read_document(path, ResultList).root) if is_list else [read_result(path)]


def stored_results(store: Store, run_ids: Iterable[str]) -> list[Result]:
    """Runs of the store by the starts of their ids or by their names."""
    return [store.find_run(run_id) for run_id in run_ids]


def points_of(results: Iterable[Result], x: str, y: str) -> tuple[list[tuple[float, float]], list[str]]:
    """(x, y) of each result, and why others are left out, such as those with a capacity known from one side only."""
    points, left_out = [], []
    for result in results:
        if result.capacity.status != "estimated":
            side = result.capacity.status.replace("_", " ")
            left_out.append(f"run {result.run_id}: only known to be {side} {result.capacity.estimate:g}")
            continue
        try:
            points.append((evaluate_on(result, x), evaluate_on(result, y)))
        except BadSetting as error:
            left_out.append(str(error))
    if not points and left_out:
        raise BadSetting(f"no result can be used; the first: {left_out[0]}")
    return points, left_out
