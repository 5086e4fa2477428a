"""Exports: stored trials and runs as tables that other programs read."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import polars
import pytest

from capbench.store.store import store_file

FIXTURE = Path(__file__).parents[1] / "fixtures" / "store-v3.sqlite"


@pytest.fixture(autouse=True)
def stored(own_store: Path) -> None:
    own_store.mkdir()
    shutil.copy(FIXTURE, store_file(own_store))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_trial_with_metrics_and_the_fields_of_its_run(capbench, tmp_path: Path) -> None:
    done = capbench("export", str(tmp_path / "trials.csv"))
    assert (done.code, done.out) == (0, "")
    assert "wrote 82 trials" in done.err
    rows = read(tmp_path / "trials.csv")
    assert len({row["key"] for row in rows}) == 82
    trained = [row for row in rows if row["run_id"]]
    assert len(trained) == 50
    assert {row["arch.n_heads"] for row in trained} == {"4"}
    assert {row["n_parameters"] for row in trained} == {"514"}
    assert all(0 <= float(row["metric.f1"]) <= 1 for row in rows)


def test_the_three_formats_agree(capbench, tmp_path: Path) -> None:
    for ending in ("csv", "jsonl", "parquet"):
        assert capbench("export", str(tmp_path / f"x.{ending}"), "--status", "held").code == 0
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    frame = polars.read_parquet(tmp_path / "x.parquet")
    keys = [row["key"] for row in read(tmp_path / "x.csv")]
    assert keys == [line["key"] for line in lines] == frame["key"].to_list()
    assert frame["metric.f1"].to_list() == [line["metric.f1"] for line in lines]
    assert frame.schema["load"] == polars.Int64
    assert set(frame["status"]) == {"held"}


def test_runs_have_a_row_each_with_the_capacity(capbench, tmp_path: Path) -> None:
    assert capbench("export", str(tmp_path / "runs.csv"), "--runs").code == 0
    (row,) = read(tmp_path / "runs.csv")
    assert (row["run_id"], row["kind"], row["n_trials"]) == ("84b6f9cef354", "largest_load", "50")
    assert float(row["ci_low"]) < float(row["estimate"]) < float(row["ci_high"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "x.xlsx"), "export takes a file ending in .csv, .jsonl, .parquet, got 'x.xlsx'"),
        (("export", "nowhere/x.csv"), "export needs an existing folder"),
        (("export", "x.csv", "--runs", "--status", "held"), "--status selects trials"),
        (("export", "x.csv", "--since", "yesterday"), "--since"),
    ],
)
def test_a_mistake_is_one_line_and_writes_no_file(capbench, words: tuple[str, ...], message: str) -> None:
    done = capbench(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert not Path(words[1]).exists()


def test_parquet_without_polars_names_the_remedy(capbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    done = capbench("export", str(tmp_path / "x.parquet"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'capbench[frames]'" in done.err


def test_an_export_that_cannot_be_written_leaves_the_old_file(capbench, tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    done = capbench("export", str(tmp_path / "x.csv"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "cannot be written" in done.err
    assert list(tmp_path.glob("*.part")) == [], "no half-written file stays"
