"""Building the board: the same bytes every time, hostile names are escaped, a broken record is named and left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from capbench.documents.result import MissingRecord
from capbench.documents.text import as_json_text
from capbench_leaderboard.build import build_board
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import file_digest, read_board
from capbench_leaderboard.ranking.record_status import RecordCheck, add_check
from capbench_leaderboard.readme import escape_markdown
from capbench_leaderboard.slugs import slug, unique_slugs
from tests.faults.hostile import HOSTILE, markdown_faults, page_faults, terminal_faults
from tests.leaderboard.synthetic import SyntheticRecord, write_record, write_result


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "board" / "records"
    for architecture, capacity in (("mha", 40), ("mlp", 42), ("gqa", 120)):
        write_record(folder, SyntheticRecord(architecture=architecture, capacity=capacity))
    gap = MissingRecord(task="rgr", architecture="aot", tier=1024, reason="cannot come within 5 %")
    (folder / "standard" / "missing.json").write_text(json.dumps([gap.model_dump()]))
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_records_give_the_same_bytes(records: Path, tmp_path: Path) -> None:
    build_board(records, tmp_path / "one")
    build_board(records, tmp_path / "one")
    build_board(records, tmp_path / "two")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


def test_the_readme_has_ranks_intervals_and_what_is_missing(records: Path) -> None:
    build_board(records, records.parent)
    text = (records.parent / "README.md").read_text()
    assert "| 2–3" in text
    assert "cannot come within 5 %" in text
    assert "![rgr: bits per parameter against parameters, suite standard 1](charts/rgr-bits.svg)" in text
    for line in text.splitlines():
        if "](records/" in line and line.startswith("|"):
            assert (records.parent / line.split("](")[1].split(")")[0]).is_file()


def test_a_stale_board_fails_the_check_and_a_fresh_one_does_not(records: Path, capbench) -> None:
    arguments = ("leaderboard", "build", "--records", str(records))
    assert capbench(*arguments).code == 0
    assert capbench(*arguments, "--check").code == 0
    write_record(records, SyntheticRecord(architecture="new", capacity=77))
    done = capbench(*arguments, "--check")
    assert done.code == 1
    assert "README.md" in done.err
    assert "charts/rgr-bits.svg" in done.err
    (records.parent / "charts" / "rgr-bits.svg").write_text("changed by hand")
    assert "charts/rgr-bits.svg" in capbench(*arguments, "--check").err


@pytest.mark.parametrize("name", ["README.md", "charts/rgr-bits.svg", "site/index.html"])
def test_a_build_never_replaces_a_file_that_it_did_not_write(records: Path, name: str, capbench) -> None:
    foreign = records.parent / name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("mine")
    before = bytes_of(records.parent)
    done = capbench("leaderboard", "build", "--records", str(records))
    assert done.code == 2
    assert "--out" in done.err
    assert bytes_of(records.parent) == before, "the checks come before the first write"


def test_a_build_removes_its_own_old_charts_and_no_others(records: Path) -> None:
    out = records.parent
    build_board(records, out)
    (out / "charts" / "mine.svg").write_text("mine")
    for path in (records / "standard" / "rgr").glob("*.json"):
        path.unlink()
    build_board(records, out)
    assert {path.name for path in (out / "charts").iterdir()} == {"mine.svg"}


def test_a_board_without_records_is_built(tmp_path: Path, capbench) -> None:
    (tmp_path / "records").mkdir()
    done = capbench("leaderboard", "build", "--records", str(tmp_path / "records"))
    assert done.code == 0
    assert "no records yet" in (tmp_path / "README.md").read_text()
    assert "no records yet" in (tmp_path / "site" / "index.html").read_text()


def test_a_broken_record_is_named_with_field_and_fix_and_the_board_is_built(records: Path, capbench) -> None:
    document = SyntheticRecord(architecture="broken").result().model_dump(mode="json")
    document["capacity"]["estimate"] = "a lot"
    (records / "standard" / "rgr" / "broken.json").write_text(json.dumps(document))
    (records / "standard" / "rgr" / "torn.json").write_text('{"schema_version": 1, "run_')
    done = capbench("leaderboard", "build", "--records", str(records))
    assert done.code == 0
    assert "3 records" in done.out
    page = (records.parent / "site" / "index.html").read_text()
    for text in (done.err, page):
        assert "standard/rgr/broken.json: capacity.estimate" in text
        assert "capbench run" in text
        assert "standard/rgr/torn.json" in text


def test_a_missing_folder_is_an_error_with_a_remedy(tmp_path: Path, capbench) -> None:
    done = capbench("leaderboard", "build", "--records", str(tmp_path / "nowhere"))
    assert done.code == 2
    assert "capbench suite" in done.err


def test_a_folder_with_other_files_is_not_replaced(records: Path, capbench) -> None:
    mine = records.parent / "site" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("precious")
    assert capbench("leaderboard", "build", "--records", str(records)).code == 2
    assert mine.read_text() == "precious"


def test_a_verified_record_is_marked_in_the_overview(records: Path) -> None:
    path = next((records / "standard" / "rgr").glob("gqa-*.json"))
    check = RecordCheck(
        record=path.relative_to(records).as_posix(),
        digest=file_digest(path),
        verdict="verified",
        n_sampled=8,
        n_trials=44,
        tolerance="equal",
        date="2026-01-01",
    )
    add_check(records, check)
    build_board(records, records.parent)
    page = (records.parent / "site" / "index.html").read_text()
    assert page.count('class="settled verified') == 1
    assert page.count('class="settled') == 3


def test_building_imports_no_torch(records: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from capbench_leaderboard.build import build_board; "
        f"build_board(Path({str(records)!r}), Path({str(records.parent)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_check_counts_only_for_the_bytes_that_were_checked(records: Path) -> None:
    path = next((records / "standard" / "rgr").glob("gqa-*.json"))
    name = path.relative_to(records).as_posix()
    check = {
        "record": name,
        "digest": file_digest(path),
        "verdict": "verified",
        "n_sampled": 8,
        "n_trials": 44,
        "tolerance": "equal",
        "date": "2026-01-01",
        "by": "a reviewer",
    }
    (records / "verified.json").write_text(json.dumps({"checks": [check]}))
    assert set(read_board(records, ProcessPool()).checks) == {name}
    path.write_text(path.read_text() + "\n")
    assert read_board(records, ProcessPool()).checks == {}


def test_a_removed_record_is_logged_with_the_reason_and_stays_removed(records: Path, capbench) -> None:
    path = next((records / "standard" / "rgr").glob("mlp-*.json"))
    text = path.read_text()
    arguments = ("--reason", "trained on the answers", "--records", str(records))
    assert capbench("leaderboard", "remove", str(path), *arguments).code == 0
    assert not path.exists()
    path.write_text(text)
    board = build_board(records, records.parent)
    assert len(board.entries) == 2
    assert "trained on the answers" in (records.parent / "README.md").read_text()
    assert "trained on the answers" in (records.parent / "site" / "index.html").read_text()


def test_hostile_names_are_harmless_in_page_table_and_terminal(tmp_path: Path, capbench) -> None:
    records = tmp_path / "records"
    base = SyntheticRecord().result()
    for i, text in enumerate(HOSTILE):
        named = {"name": text, "plugin": text, "params": {text: text}}
        changes = {
            "task": base.task.model_copy(update=named),
            "architecture": base.architecture.model_copy(update=named),
            "command": text,
            "run_id": f"{i}{text}"[:40],
            "bounds": tuple(b.model_copy(update={"id": text, "citation": text, "note": text}) for b in base.bounds),
            "environment": base.environment.model_copy(update={"platform": text, "torch": text}),
        }
        write_result(records / "hostile" / "x" / f"{i}.json", base.model_copy(update=changes))
    gap = MissingRecord(task=HOSTILE[0], architecture=HOSTILE[1], tier=1024, reason=HOSTILE[2])
    (records / "hostile" / "missing.json").write_text(json.dumps([gap.model_dump()]))
    done = capbench("leaderboard", "build", "--records", str(records))
    assert done.code == 0
    assert terminal_faults(done.out + done.err) == []
    assert markdown_faults((tmp_path / "README.md").read_text()) == []
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 3 * len(HOSTILE) - 20
    for page in pages:
        assert page_faults(page.read_text()) == [], page
        assert page.resolve().is_relative_to(tmp_path / "site")
    assert not [p for p in (tmp_path / "charts").glob("*.svg") if "<script" in p.read_text()]


def test_markdown_shows_a_name_literally() -> None:
    assert escape_markdown("a|b") == "a\\|b"
    assert escape_markdown("<b>") == "&lt;b&gt;"
    assert escape_markdown("[x](y)") == "\\[x\\]\\(y\\)"
    assert "://" not in escape_markdown("http://example.invalid")


def test_slugs_differ_even_where_names_look_alike() -> None:
    slugs = unique_slugs(["a b", "a-b", "A B", "../..", ""])
    assert len(set(slugs.values())) == 5
    assert slug("../../etc/passwd") == "etc-passwd"


def test_a_report_compares_runs_in_one_file(tmp_path: Path, capbench) -> None:
    paths = [
        write_result(tmp_path / f"{a}.json", SyntheticRecord(architecture=a, capacity=c).result())
        for a, c in (("a", 20), ("b", 90))
    ]
    out = tmp_path / "report.html"
    done = capbench("report", *map(str, paths), "--out", str(out))
    assert done.code == 0
    text = out.read_text()
    assert "rgr × a" in text
    assert "rgr × b" in text
    assert "<script src" not in text
    assert capbench("report", "0000", "--out", str(out)).code == 2


def test_a_report_reads_the_list_that_a_sweep_writes(tmp_path: Path, capbench) -> None:
    swept = [SyntheticRecord(architecture=a, capacity=c).result() for a, c in (("a", 20), ("b", 90))]
    (tmp_path / "sweep.json").write_text(as_json_text(swept))
    out = tmp_path / "report.html"
    assert capbench("report", str(tmp_path / "sweep.json"), "--out", str(out)).code == 0
    assert "rgr × a" in out.read_text()
    assert "rgr × b" in out.read_text()
