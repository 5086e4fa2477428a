"""Theories on trial, on made documents: violations, gaps, wrong laws and frozen predictions; nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from capbench import Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task
from capbench.documents.result import Capacity, PluginRef, Result
from capbench.errors import BadDocument, BadSetting
from capbench.registry.plugin_file import class_provenance
from capbench.registry.registry import Provided, Registry, load_registry
from capbench.report.theories_text import WIDTH, theories_text
from capbench.studies.theories.cells import MeasuredCell, read_cells
from capbench.studies.theories.frozen import freeze, new_cells, read_frozen, score, write_frozen
from capbench.studies.theories.judge import judge
from capbench.studies.theories.judged import LawLimits, TheoryRow
from tests.leaderboard.synthetic import SyntheticRecord, write_result

WIDTHS = (4, 8, 16, 32)


class Squares(Bound):
    """What the made cells follow, up to a constant of 3."""

    name: ClassVar[str] = "made.squares"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = "facts grow as the square of the width"
    formula: ClassVar[str] = "d^2"
    citation: ClassVar[str] = "made for the tests"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        if task.name != "bigrams":
            raise NotApplicable("it is about bigrams")
        return BoundValue(self.of_width(dict(architecture)["d_model"]))

    def of_width(self, d: int) -> float:
        return float(d**2)


class Lines(Squares):
    """A wrong law."""

    name: ClassVar[str] = "made.lines"

    def of_width(self, d: int) -> float:
        return float(d)


class Ceiling(Squares):
    """An upper bound that the largest cell breaks."""

    name: ClassVar[str] = "made.ceiling"
    kind: ClassVar[Kind] = Kind.UPPER

    def of_width(self, d: int) -> float:
        return 100.0 * d


class Nothing(Ceiling):
    """An upper bound that every cell breaks, although it has no ratio."""

    name: ClassVar[str] = "made.nothing"

    def of_width(self, d: int) -> float:
        return 0.0


class Guarantee(Squares):
    """A guarantee that the smallest cell does not reach."""

    name: ClassVar[str] = "made.guarantee"
    kind: ClassVar[Kind] = Kind.LOWER

    def of_width(self, d: int) -> float:
        return 60.0


class Raising(Squares):
    """A bound with an error of its own."""

    name: ClassVar[str] = "made.raising"

    def of_width(self, d: int) -> float:
        return d / 0


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


def made(d: int, estimate: float | None = None, status: str = "estimated", arch: str = "mha") -> Result:
    """The document of a cell that holds 3 d² bigrams."""
    estimate = 3.0 * d**2 if estimate is None else estimate
    found = SyntheticRecord(task="bigrams", architecture=arch, capacity=estimate, tier=100 * d).result()
    facts = int(estimate)
    trials = (found.trials[0].model_copy(update={"load": max(1, facts)}),)
    capacity = Capacity(
        kind="largest_load", estimate=estimate, ci_low=None, ci_high=None, confidence=0.95, status=status
    )
    task = PluginRef.model_validate({**dict(found.task), "params": {"n_tokens": 64}})
    architecture = found.architecture.model_copy(update={"params": {"d_model": d}})
    changes = {"capacity": capacity, "trials": trials, "task": task, "architecture": architecture}
    return found.model_copy(update=changes)


def cells_of(registry: Registry, *results: Result) -> list[MeasuredCell]:
    return read_cells(((result, None) for result in results), registry)[0]


@pytest.fixture
def cells(registry: Registry) -> list[MeasuredCell]:
    return cells_of(registry, *(made(d) for d in WIDTHS))


def verdict(bound: type[Bound], cells: list[MeasuredCell]) -> TheoryRow:
    (row,) = judge([bound], cells, LawLimits())
    return row


def test_a_right_law_holds_with_its_constant_no_spread_and_no_held_out_error(cells) -> None:
    row = verdict(Squares, cells)
    assert (row.verdict, row.series, row.judged, row.violations) == ("holds", 1, 4, 0)
    assert (row.constant, row.spread) == pytest.approx((3, 1))
    assert row.heldout_error == pytest.approx(0, abs=1e-9)


def test_a_wrong_law_is_rejected_with_the_cells_that_contradict_it(cells) -> None:
    row = verdict(Lines, cells)
    assert row.verdict == "rejected"
    assert row.spread == pytest.approx(8)  # 3 d² / d, from d = 4 to 32
    # The mean log of 12 and 24 predicts 48 and 96: off by factors of 2√2 and 4√2.
    assert row.heldout_error == pytest.approx((((1.5**2 + 2.5**2) / 2) ** 0.5) * 0.693147, rel=1e-4)
    assert {each.n_parameters for each in row.contradictions} == {407, 1607, 3207}
    assert "factor of 8" in row.contradictions[0].why


def test_a_broken_upper_bound_names_its_cells_and_a_bound_of_zero_is_broken_too(registry, cells) -> None:
    row = verdict(Ceiling, cells)
    assert (row.verdict, row.violations) == ("holds", 0)
    (more,) = cells_of(registry, made(64, estimate=7000))
    row = verdict(Ceiling, [*cells, more])
    assert (row.verdict, row.violations) == ("broken", 1)
    assert row.contradictions[0].measured == 7000
    assert verdict(Nothing, cells).violations == 4


def test_a_cell_below_a_guarantee_is_an_optimisation_gap_and_no_violation(registry, cells) -> None:
    row = verdict(Guarantee, cells)
    assert (row.verdict, row.gaps, row.violations) == ("gaps", 1, 0)
    assert row.lowest_ratio == pytest.approx(0.8)  # 48 of 60
    one_sided = cells_of(registry, made(4, status="at_least"))
    assert verdict(Guarantee, one_sided).verdict == "holds", "it may hold more than was seen"


def test_what_cannot_be_compared_has_a_reason(registry, cells) -> None:
    one_sided = cells_of(registry, made(4, status="at_least"))
    assert verdict(Squares, one_sided).reasons == {"the capacity is known from one side only": 1}
    assert verdict(Squares, cells[:1]).verdict == "untested", "one size is no series"
    row = verdict(Raising, cells)
    assert row.verdict == "failed"
    assert row.reasons == {"it raised ZeroDivisionError: division by zero": 4}


def test_a_cell_of_a_plugin_that_is_not_installed_is_left_out_by_name(registry) -> None:
    found, left_out = read_cells([(made(4, arch="gone"), None), (made(4), None), (made(4), "2026")], registry)
    assert len(found) == 1, "a run counts once"
    assert "no architecture named 'gone'" in left_out[0]


def test_a_forged_measurement_near_zero_is_not_compared_and_stops_nothing(registry) -> None:
    honest, forged = made(8), made(16, estimate=5e-324)
    (row,) = judge([Squares], read_cells([(honest, None), (forged, None)], registry)[0], LawLimits())
    assert (row.judged, row.constant) == (1, pytest.approx(3.0))
    assert any("differ by more than any measurement could" in reason for reason in row.reasons)


def test_a_record_with_an_impossible_load_or_none_is_left_out_by_name(registry) -> None:
    beyond, loadless = made(8, estimate=1e15), made(16)
    loadless = loadless.model_copy(update={"capacity": loadless.capacity.model_copy(update={"kind": "success_rate"})})
    cells, left_out = read_cells([(made(4), None), (beyond, None), (loadless, None)], registry)
    assert [cell.result.architecture.params["d_model"] for cell in cells] == [4]
    assert "the task has 4,096 facts at most" in left_out[0]
    assert "protocol.at: a result that is no capacity states its load" in left_out[1]


def test_sentences_fit_80_columns_and_tables_100(registry, cells) -> None:
    bounds = [*(each.cls for each in registry.bounds.values()), Squares, Lines, Guarantee, Raising, Nothing]
    rows = judge(bounds, cells, LawLimits())
    text = theories_text(rows, cells, [], LawLimits())
    lines = text.splitlines()
    assert max(len(line) for line in lines if "  " not in line.strip()) <= WIDTH
    assert max(map(len, lines)) <= 100
    assert "made.lines: rejected" in text


def provided(*bounds: type[Bound]) -> dict[str, Provided[Bound]]:
    return {each.name: Provided(each, class_provenance(each)) for each in bounds}


def test_frozen_predictions_are_scored_on_cells_measured_since(registry, cells, tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    write_frozen(path, freeze([Squares, Lines, Ceiling], cells[:3], LawLimits()))
    frozen = read_frozen(path)
    since = new_cells(frozen, cells)
    assert [cell.result.run_id for cell in since] == [cells[3].result.run_id]
    rows = {row.bound: row for row in score(frozen, provided(Squares, Lines, Ceiling), since)}
    assert (rows["made.squares"].verdict, rows["made.squares"].judged) == ("holds", 1)
    assert rows["made.squares"].heldout_error == pytest.approx(0, abs=1e-9)
    assert rows["made.lines"].verdict == "rejected"  # 12, 24 and 48 predict 24; it is 96
    assert rows["made.lines"].heldout_error == pytest.approx(1.386294, rel=1e-4)
    assert rows["made.ceiling"].verdict == "holds"
    assert [row.verdict for row in score(frozen, provided(Squares), since)] == ["holds", "changed", "changed"]


def test_a_frozen_file_is_never_replaced_and_a_changed_one_is_refused(cells, tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    write_frozen(path, freeze([Squares], cells, LawLimits()))
    with pytest.raises(BadSetting, match="name another one"):
        write_frozen(path, freeze([Squares], cells, LawLimits()))
    document = json.loads(path.read_text())
    document["predictions"][0]["constant"] *= 2
    path.write_text(json.dumps(document))
    with pytest.raises(BadDocument, match="changed after it was frozen"):
        read_frozen(path)


PLUGIN = '''
"""A wrong law, as a third party would write it."""
from typing import ClassVar
from capbench import Bound, BoundValue, Kind, Pedigree, hookimpl

class Constant(Bound):
    """All models hold the same."""
    name: ClassVar[str] = "mine.constant"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = "every model holds as many facts as any other"
    formula: ClassVar[str] = "100"
    citation: ClassVar[str] = "nobody"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task, architecture, load):
        """100."""
        return BoundValue(100.0)

@hookimpl
def capbench_bounds():
    """The law."""
    return [Constant]
'''


def test_the_command_rejects_a_wrong_law_of_a_plugin_file(capbench, tmp_path: Path) -> None:
    plugin, records = tmp_path / "wrong_law.py", tmp_path / "records"
    plugin.write_text(PLUGIN)
    for d in WIDTHS:
        write_result(records / f"{d}.json", made(d))
    done = capbench("theories", "--records", str(records), "--plugin", str(plugin), "--json")
    assert done.code == 1
    assert "the cells contradict mine.constant (rejected)" in done.err
    rows = {row["bound"]: row for row in json.loads(done.out)}
    assert {"bound", "cells", "applies", "violations", "median_ratio", "heldout_error"} <= rows["mine.constant"].keys()
    assert rows["mine.constant"]["contradictions"][0]["run_id"] == made(4).run_id
    named = capbench("theories", "dana2025.associations", "--records", str(records))
    assert named.code == 0, named.err
    assert "dana2025.associations" in named.out
    assert "bits.per_parameter" not in named.out


ONE_SIZE_ONLY = {"barnfield2026.top_one", "madden2024.next_token", "zhong2025.delta_rule"}


def test_the_committed_records_give_every_registered_bound_a_cell_and_break_none(capbench, monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    done = capbench("theories", "--json")
    assert done.code == 0, done.err
    rows = {row["bound"]: row for row in json.loads(done.out)}
    registered = load_registry().bounds
    assert set(rows) == set(registered)
    # Laws that have a cell, but not two sizes of a series with a capacity that is known from both sides.
    assert {name for name, row in rows.items() if row["verdict"] == "untested"} <= ONE_SIZE_ONLY
    assert [name for name, row in rows.items() if row["verdict"] in ("broken", "failed")] == []
    assert [name for name, row in rows.items() if not row["applies"]] == []


def test_the_page_of_the_records_for_theories_has_the_command_of_each() -> None:
    folder = Path(__file__).parents[2] / "leaderboard/theories"
    page = (folder / "README.md").read_text()
    for path in folder.glob("*.json"):
        assert f"{json.loads(path.read_text())['command']} --json > leaderboard/theories/{path.name}" in page
