"""Nothing that a record holds stops a board or a text: it is shown, refused at reading, or left out by name."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capbench.documents.result import Result
from capbench.documents.strict_json import read_result
from capbench.documents.text import as_json_text
from capbench.errors import BadDocument
from capbench.registry.registry import Registry, load_registry
from capbench.report.result_text import brief_capacity, profile_text, readings_text, result_text
from capbench.report.store_text import runs_text
from capbench.report.theories_text import theories_text
from capbench.store.queries import StoredRun
from capbench.studies.theories.cells import read_cells
from capbench.studies.theories.judge import judge
from capbench.studies.theories.judged import LawLimits
from capbench_leaderboard.build import build_board
from capbench_leaderboard.report import report_page
from tests.faults.hostile import markdown_faults, page_faults, terminal_faults
from tests.faults.mutations import plausible
from tests.leaderboard.synthetic import SyntheticRecord, write_record

ROOT = Path(__file__).parents[2]
N_HONEST = 3
N_PUBLISHED = 6
"""Published records that are mutated too, the smallest ones."""
RECORDS_PER_BOARD = 60


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """A plain record, and one with every part that a document may have."""
    plain: dict[str, Any] = SyntheticRecord(seeds=2).result().model_dump(mode="json")
    full = json.loads(json.dumps(plain))
    steps = {name: full["capacity"][name] for name in ("estimate", "ci_low", "ci_high")} | {"steps": 1000}
    full["capacity"] |= {"settled": True, "drift": 0.03, "by_steps": [steps, steps], "d_qk_total": 8.0}
    reading = {"name": "half", "unit": "facts", "estimate": 30.0, "ci_low": 20.0, "ci_high": None}
    full["readings"] = [reading | {"status": "estimated", "note": "as asked"}]
    shape = {"params": {"d_model": 8}, "n_parameters": 900, "estimate": 20.0, "trials": 4}
    full["architecture"]["shapes_tried"] = [shape, shape | {"params": {"d_model": 9}}]
    chosen = [trial | {"limit": 1000} for trial in full["trials"][:4]]
    full["selection"] = {"version": 1, "share": 0.05, "first_seed": 10**6, "rates": full["rates"], "trials": chosen}
    full["constructed"] = {"solver": full["solver"], "capacity": full["capacity"], "trials": full["trials"][:2]}
    full["suite"]["settle"] = 0.05
    full["timing"]["phases"] = {"steps": 1.0}
    published = sorted((ROOT / "leaderboard" / "records" / "standard").glob("*/*.json"), key=lambda p: p.stat().st_size)
    return [json.dumps(plain), json.dumps(full), *(path.read_text() for path in published[:N_PUBLISHED])]


def accepted(documents: list[str], folder: Path, count: int) -> Iterator[Result]:
    """Mutated records that pass reading, written into a folder."""
    chance, number = random.Random(27), 0
    while number < count:
        path = folder / f"{number:05}.json"
        path.write_bytes(plausible(chance.choice(documents), chance))
        try:
            result = read_result(path)
        except BadDocument:
            continue
        number += 1
        yield result


def theories_of(results: list[Result], registry: Registry) -> str:
    """What `capbench theories` prints of some documents."""
    apart = [(r.model_copy(update={"run_id": f"{i}-{r.run_id}"}), None) for i, r in enumerate(results)]
    cells, left_out = read_cells(apart, registry)
    rows = judge([provided.cls for provided in registry.bounds.values()], cells, LawLimits())
    json.loads(as_json_text(rows))
    return theories_text(rows, cells, left_out, LawLimits())


@pytest.mark.slow
def test_no_record_that_passes_reading_stops_a_board_a_page_or_a_text(documents, tmp_path: Path, tally, size) -> None:
    n_documents, left_out, registry = size(3000, 60), 0, load_registry()
    for start in range(0, n_documents, RECORDS_PER_BOARD):
        folder = tmp_path / str(start) / "records"
        (folder / "mutated").mkdir(parents=True)
        for n in range(N_HONEST):
            write_record(folder, SyntheticRecord(architecture=f"honest{n}", capacity=30 + n))
        mutated = list(accepted(documents, folder / "mutated", RECORDS_PER_BOARD))
        assert not terminal_faults(theories_of(mutated, registry))
        for result in mutated:
            texts = [result_text(result, "fact"), readings_text(result, "fact"), brief_capacity(result)]
            texts += [profile_text(result.timing), runs_text([StoredRun("2030-01-01", result)])]
            assert not any(terminal_faults(text) for text in texts[:2])
        board = build_board(folder, folder.parent)
        assert sum(e.path.startswith("standard/") for e in board.entries) >= N_HONEST
        left_out += sum("cannot be shown" in line for line in board.broken)
        pages = [page for page in (folder.parent / "site").rglob("*.html") if page_faults(page.read_text())]
        assert not pages
        assert not page_faults(report_page(mutated[:: RECORDS_PER_BOARD // 4]))
        assert not markdown_faults((folder.parent / "README.md").read_text())
        assert len(board.entries) + len(board.broken) == RECORDS_PER_BOARD + N_HONEST
    tally.add(
        "mutated records that pass reading, on boards, as text, beside the theories and in reports",
        f"{n_documents}: 0 builds stopped, {left_out} records left out by name, all others shown; 0 pages that run or "
        "fetch anything",
    )


@pytest.fixture
def records(tmp_path: Path) -> Path:
    for n in range(5):
        write_record(tmp_path / "records", SyntheticRecord(architecture=f"arch{n}", capacity=10 * 2**n))
    return tmp_path / "records"


@pytest.mark.parametrize("step", ["make_entry", "rank_jointly", "record_page"])
def test_a_record_that_cannot_be_shown_is_left_out_by_name_and_the_others_stay(
    records: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it fails: when it is read, ranked (several together), or drawn."""
    modules = {
        "make_entry": "ranking.board",
        "rank_jointly": "ranking.ranked_tables",
        "record_page": "site.record_page",
    }
    target = f"capbench_leaderboard.{'site.writer' if step == 'record_page' else modules[step]}.{step}"
    real = getattr(importlib.import_module(f"capbench_leaderboard.{modules[step]}"), step)

    def fails(first: Any, second: Any) -> Any:
        if "arch3" in repr(first) or "arch3" in repr(second) or _has_capacity_of_arch3(first):
            raise ZeroDivisionError("nothing to draw")
        return real(first, second)

    monkeypatch.setattr(target, fails)
    board = build_board(records, records.parent)
    assert [entry.result.architecture.name for entry in board.entries] == ["arch0", "arch1", "arch2", "arch4"]
    (line,) = board.broken
    assert "arch3-" in line
    assert "cannot be shown: ZeroDivisionError in fails: nothing to draw" in line
    assert "arch4" in (records.parent / "README.md").read_text()


def _has_capacity_of_arch3(posteriors: Any) -> bool:
    estimate = SyntheticRecord(architecture="arch3", capacity=80).result().capacity.estimate
    return isinstance(posteriors, list) and any(each.estimate == estimate for each in posteriors)


OUT_OF_RANGE = {
    "n_parameters": 2**53 + 1,
    "bits": 1e16,
    "capacity.estimate": -1.0,
    "capacity.ci_high": 1e16,
    "capacity.drift": -1e16,
    "capacity.confidence": 1.0,
    "protocol.learning_rates.0": 0.0,
    "protocol.ci_width": -0.1,
    "protocol.limits.0": 0,
    "suite.version": -1,
    "suite.tier": 0,
    "rates.best": -0.1,
    "trials.0.learning_rate": -0.1,
    "trials.0.load": 2**60,
    "trials.0.metrics.f1": 1e301,
    "timing.wall_seconds": 1e16,
    "selection.trials.0.limit": 0,
    "architecture.shapes_tried.0.estimate": -1.0,
    "readings.0.estimate": -2.0,
    "bounds.0.value": 1.7e308,
}


@pytest.mark.parametrize("field", OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_at_reading_with_its_field(documents, field: str, tmp_path: Path) -> None:
    document = json.loads(documents[1])
    inner, *names = document, *field.split(".")
    for name in names[:-1]:
        inner = inner[int(name) if name.isdigit() else name]
    inner[int(names[-1]) if names[-1].isdigit() else names[-1]] = OUT_OF_RANGE[field]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadDocument) as refused:
        read_result(path)
    assert field in str(refused.value) or "numbers are at most 1e+300 in size" in str(refused.value)


def test_an_interval_from_below_zero_or_the_wrong_way_round_is_shown_without_a_share(documents) -> None:
    document = json.loads(documents[0])
    for low, high in ((2.0, -3.0), (-3.0, 2.0), (5.0, 2.0)):
        document["capacity"] |= {"ci_low": low, "ci_high": high}
        assert "±" not in result_text(Result.model_validate(document), "fact").split("criterion")[0]


def test_a_failed_trial_whose_error_is_blank_is_shown(documents, tmp_path: Path) -> None:
    document = json.loads(documents[0])
    document["trials"][0] |= {"status": "failed", "error": " \n "}
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "blank.json").write_text(json.dumps(document))
    (entry,) = build_board(tmp_path / "records", tmp_path).entries
    assert entry.failures.endswith("trials failed: no message")
