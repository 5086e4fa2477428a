"""The page of theories: what the records state decides it, and no plugin is needed."""

from __future__ import annotations

import re
from pathlib import Path

from capbench_leaderboard.build import build_board
from tests.leaderboard.synthetic import SyntheticRecord, write_result


def page_text(folder: Path) -> str:
    build_board(folder / "records", folder)
    html = (folder / "site" / "theories.html").read_text(encoding="utf-8")
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_a_record_beyond_an_upper_bound_is_broken_and_named(tmp_path: Path) -> None:
    honest, beyond = SyntheticRecord(capacity=50).result(), SyntheticRecord(capacity=50, architecture="gqa").result()
    lowered = tuple(
        bound.model_copy(update={"value": 10.0, "ratio": 5.0, "holds": False}) if bound.kind == "upper" else bound
        for bound in beyond.bounds
    )
    write_result(tmp_path / "records" / "a.json", honest)
    write_result(tmp_path / "records" / "b.json", beyond.model_copy(update={"bounds": lowered}))
    text = page_text(tmp_path)
    assert "broken" in text
    against = text.split("Records against a theory")[1]
    assert "gqa" in against
    assert "beyond the bound" in against
    assert "mha" not in against


def test_training_below_a_guarantee_is_a_gap_and_no_violation(tmp_path: Path) -> None:
    write_result(tmp_path / "records" / "a.json", SyntheticRecord(capacity=12).result())
    text = page_text(tmp_path)
    assert "1 gap " in text
    assert "training reached less than is guaranteed" in text
    assert "broken" not in text


def test_records_within_their_bounds_leave_nothing_against_a_theory(tmp_path: Path) -> None:
    write_result(tmp_path / "records" / "a.json", SyntheticRecord(capacity=50).result())
    text = page_text(tmp_path)
    assert "Records against a theory" not in text
    assert "holds" in text
