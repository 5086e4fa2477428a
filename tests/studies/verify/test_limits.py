"""A document cannot make its verification take more time, memory, disk or processes, or load anything it names."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from capbench.documents.result import Result
from capbench.measure.session import NullListener
from capbench.studies.verify.limits import Limits, VerifyTask, verify_within_limits
from capbench.studies.verify.tolerance import chance_of_finding, chance_text
from capbench.studies.verify.verify import Verification, VerificationStatus
from tests.leaderboard.synthetic import SyntheticRecord

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system's limits are those of Linux")
OVER = VerificationStatus.OVER_LIMITS


@pytest.fixture(scope="module")
def result() -> Result:
    return SyntheticRecord(seeds=1).result()


def verify(result: Result, load: Callable[[], Any], **limits: Any) -> Verification:
    task = VerifyTask(result, load, lambda: nullcontext(NullListener()), 0)
    return verify_within_limits(task, Limits(**{"seconds": 30.0, **limits}))


def never() -> None:
    pytest.fail("nothing may be loaded or built")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"n_parameters": 10**8}, "n_parameters: at most 10,000,000 may be asked for, got 100,000,000"),
        ({"protocol": {"steps": 10**9}}, "protocol.steps: at most 1,000,000 may be asked for, got 1,000,000,000"),
    ],
)
def test_a_document_that_asks_for_too_much_is_refused_before_anything_is_built(
    result: Result, change: dict[str, Any], finding: str
) -> None:
    document = result.model_dump(mode="json")
    for name, value in change.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    found = verify(Result.model_validate(document), never)
    assert found.verdict is OVER
    assert found.findings[0].startswith(finding)


def test_a_document_of_a_million_trials_is_not_even_read(result: Result, tmp_path: Path, capbench) -> None:
    document = result.model_dump(mode="json")
    document["trials"] = document["trials"][:1] * 10_001
    (tmp_path / "record.json").write_text(json.dumps(document))
    done = capbench("leaderboard", "verify", str(tmp_path / "record.json"))
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_more_trials_than_the_limit_are_refused(result: Result) -> None:
    assert verify(result, never, trials=10).findings[0].startswith("trials: at most 10 may be asked for")


def hang() -> None:
    time.sleep(600)


def fill_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(2**20)) * 16)
        time.sleep(0.01)


def fill_disk() -> None:
    for n in range(1000):
        Path(tempfile.gettempdir(), str(n)).write_bytes(bytes(2**20))
        time.sleep(0.01)


def breed() -> None:
    for _ in range(12):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)


@pytest.mark.parametrize(
    ("load", "limits", "finding"),
    [
        (hang, {"seconds": 0.6}, "time: it took more than 0.6 s"),
        (fill_memory, {"memory": 2**29}, "memory: "),
        (fill_disk, {"disk": 20 * 2**20}, "disk: it wrote more than"),
        (breed, {"processes": 6}, "processes: it started more than 6"),
    ],
)
def test_a_verification_that_takes_too_much_is_cut_off_with_the_limit_that_it_broke(
    result: Result, load: Callable[[], None], limits: dict[str, float], finding: str
) -> None:
    found = verify(result, load, **limits)
    assert found.verdict is OVER
    assert found.findings[0].startswith(finding)
    assert not _children_of_mine(), "it is ended with all that it has started"


def _children_of_mine() -> list[str]:
    stats = [stat.read_text() for stat in Path("/proc").glob("[0-9]*/stat") if stat.exists()]
    fields = [text.rpartition(")")[2].split() for text in stats]
    return [each for each in fields if each[1] == str(os.getpid()) and each[3] != str(os.getsid(0)) and each[0] != "Z"]


def make_and_remove_folders() -> None:
    """What a compiler's temporary folders look like from outside, for a second."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "source.c").write_bytes(bytes(64))


def test_folders_that_vanish_while_their_size_is_taken_are_no_error(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capbench.studies.verify.limits.POLL_SECONDS", 0.0005)
    found = verify(result, make_and_remove_folders)
    assert found.verdict is not OVER


def test_one_allocation_of_everything_fails_in_the_child(result: Result) -> None:
    found = verify(result, lambda: bytearray(2**36), memory=2**29)
    assert (found.verdict, found.findings) == (OVER, ("memory: a model or a problem does not fit",))


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_dies_is_a_verdict(result: Result, signal_number: int) -> None:
    found = verify(result, lambda: os.kill(os.getpid(), signal_number))
    assert found.verdict is OVER
    assert f"exit code -{int(signal_number)}" in found.findings[0]


def test_an_unexpected_error_is_a_verdict_and_no_traceback(result: Result) -> None:
    found = verify(result, lambda: 1 / 0)
    assert (found.verdict, found.findings) == (
        VerificationStatus.CANNOT_RUN,
        ("ZeroDivisionError: division by zero",),
    )


EVIL = "from pathlib import Path\nPath({marker!r}).touch()\n"


def test_nothing_that_a_document_names_is_imported_or_run(
    result: Result, tmp_path: Path, capbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, evil = tmp_path / "ran", tmp_path / "evil_module.py"
    evil.write_text(EVIL.format(marker=str(marker)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for field in ("task", "architecture", "solver", "environment", "command", "suite"):
        document = result.model_dump(mode="json")
        if field == "command":
            document[field] = f"capbench --plugin {evil} run --task rgr --arch mha --plugin {evil}"
        elif field == "environment":
            plugin = {"entry_point": "evil_module", "distribution": "evil_module", "version": "1"}
            document[field]["plugins"].append({**plugin, "module": "evil_module"})
        elif field == "suite":
            document[field]["name"] = str(evil)
        else:
            document[field] |= {"name": "evil_module", "plugin": f"{evil} 1"}
        (tmp_path / "record.json").write_text(json.dumps(document))
        assert capbench("leaderboard", "verify", "--sample", "1", str(tmp_path / "record.json")).code in (1, 2)
        assert not marker.exists(), field


def test_a_file_that_changes_while_it_is_verified_has_no_verdict(
    result: Result, tmp_path: Path, capbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    path.write_text(result.model_dump_json())

    def swap(*_: object) -> Verification:
        path.write_text(result.model_dump_json(indent=1))
        return Verification(VerificationStatus.VERIFIED)

    monkeypatch.setattr("capbench.studies.verify.limits.verify_within_limits", swap)
    done = capbench("leaderboard", "verify", str(path))
    assert done.code == 2
    assert "was changed while it was verified" in done.err
    assert "verified\n" not in done.out


def test_the_chance_of_finding_changed_trials_is_that_of_drawing_them() -> None:
    assert chance_of_finding(100, 8, 1, 0) == pytest.approx(0.08)
    assert chance_of_finding(10, 10, 1, 0) == 1.0
    assert chance_of_finding(4, 2, 2, 0) == pytest.approx(1 - 1 / 6)  # 6 pairs, of which one has none of the two
    assert chance_of_finding(4, 2, 2, 1) == pytest.approx(1 / 6)  # both must be drawn
    assert chance_of_finding(100, 8, 1, 1) == pytest.approx(0.0), "one may deviate, so one is never enough"
    assert math.isclose(chance_of_finding(3, 1, 3, 0), 1.0)


def test_the_chance_is_stated_for_the_part_where_it_is_least() -> None:
    text = chance_text([100, 10], 8, 0)
    assert "8 % if 1 trial was, 58 % if 10 trials were" in text
    assert chance_text([100], 0, 0).startswith("no trial was run again")
