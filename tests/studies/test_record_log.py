"""The log beside a suite's records: what is not settled, which versions made them, what is missing."""

from __future__ import annotations

import json
from pathlib import Path

from capbench.documents.result import CapacityAtSteps, MissingRecord, Result
from capbench.studies.record_log import log_text
from capbench.studies.records import RecordFolder
from capbench.studies.suite import Suite, suite_file
from tests.leaderboard.synthetic import SyntheticRecord, write_result

SUITE = Suite(name="standard", version=4, tiers=(1024,), preset="quick")


def record(architecture: str, settled: bool | None, version: int = 4) -> Result:
    """A record whose last doubling of the steps raised the capacity by a tenth."""
    made = SyntheticRecord(architecture=architecture, suite_version=version).result()
    by_steps = tuple(
        CapacityAtSteps(steps=steps, estimate=estimate, ci_low=estimate - 1, ci_high=estimate + 1)
        for steps, estimate in ((1000, 40.0), (2000, 44.0))
    )
    found = {"settled": settled, "drift": None if settled is None else 0.1, "by_steps": by_steps}
    return made.model_copy(update={"capacity": made.capacity.model_copy(update=found)})


def section(text: str, heading: str) -> str:
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_only_records_that_are_not_settled_are_listed_with_their_drift_and_steps() -> None:
    text = log_text(SUITE, [record("mha", False), record("mlp", True), record("gla", None)], [])
    assert "Records: 3; settled: 1. The median interval is ± " in text
    rows = section(text, "Not settled")
    assert "mlp" not in rows
    assert "| +10.0%    | 40 at 1,000, 44 at 2,000 |" in next(row for row in rows.splitlines() if "mha" in row)
    assert "not asked" in next(row for row in rows.splitlines() if "gla" in row)


def test_records_of_other_versions_are_left_out_of_the_log() -> None:
    text = log_text(SUITE, [record("mha", False), record("gla", False, version=3)], [])
    assert "Records: 1; " in text
    assert "gla" not in text


def test_the_log_names_versions_and_missing_cells() -> None:
    gap = MissingRecord(task="rgr", architecture="mlp", tier=1024, reason="left out: a | b")
    text = log_text(SUITE, [record("mha", True)], [gap])
    assert "| 1 " in section(text, "Versions")
    assert "left out: a \\| b" in section(text, "Missing")


def test_a_folder_of_records_has_the_suites_file_and_the_log(tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path, SUITE)
    write_result(folder.path / "rgr" / "mha-1.json", record("mha", False))
    folder.write_log(suite_file("standard"))
    assert (folder.path / "SUITE.toml").read_text() == suite_file("standard").read_text()
    assert "| mha " in (folder.path / "LOG.md").read_text()
    assert not (folder.path / "missing.json").exists()
    assert json.loads((folder.path / "rgr" / "mha-1.json").read_text())["capacity"]["settled"] is False
