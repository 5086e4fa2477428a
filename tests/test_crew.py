"""Runs of a series by processes of this machine: the same documents, nothing lost, and nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

from capbench import crew, series
from capbench.crew import Crew, Died, Done, Line, Warned, crew_size
from capbench.engine.memory import free_memory
from capbench.errors import RunInterrupted, StoreUnavailable
from capbench.options import RunOptions, build_request
from capbench.registry import load_registry
from capbench.runner import execute
from capbench.series import Ended, Job, carry_out
from capbench.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def threads_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(crew, "QUOTA", Path("/there/is/none"))


def told_by(work: Callable[[int, Line], None], n_pieces: int, size: int = 2) -> list[tuple[int, object]]:
    """All that a crew tells of its pieces."""
    told, waiting = [], list(range(n_pieces))
    with Crew(size, work, nullcontext) as hands:
        while waiting or hands.n_pieces:
            while waiting and hands.has_room:
                hands.hand(waiting.pop(0))
            told += hands.hear(0.1)
    return told


def test_pieces_are_done_by_as_many_processes_and_each_tells_of_its_own() -> None:
    def work(piece: int, line: Line) -> None:
        time.sleep(0.1)
        line.tell((os.getpid(), torch.get_num_threads()))

    told = told_by(work, 6)
    assert sorted(piece for piece, what in told if what == Done()) == list(range(6))
    seen = {piece: what for piece, what in told if isinstance(what, tuple)}
    assert len({pid for pid, _ in seen.values()}) == 2
    assert os.getpid() not in {pid for pid, _ in seen.values()}
    assert {threads for _, threads in seen.values()} == {1}


def test_memory_is_shared_out() -> None:
    here = free_memory(CPU)
    told = dict(told_by(lambda _, line: line.tell(free_memory(CPU)), 1, size=4)[:1])
    assert here / 5 < told[0] < here / 3


class Unsendable(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


def test_faults_are_told_and_their_process_goes_on() -> None:
    def work(piece: int, line: Line) -> None:
        if piece == 0:
            raise StoreUnavailable("no room")
        if piece == 1:
            raise Unsendable(1, 2)
        line.tell(os.getpid())

    told = told_by(work, 3, size=1)
    faults = [what.fault for _, what in told if isinstance(what, Done)]
    assert [type(fault) for fault in faults] == [StoreUnavailable, RuntimeError, type(None)]
    assert str(faults[1]) == "Unsendable: 1"


def test_warnings_are_told() -> None:
    class Local(UserWarning): ...

    def work(piece: int, line: Line) -> None:
        warnings.simplefilter("always")
        warnings.warn("beware", Local if piece else DeprecationWarning, stacklevel=1)

    told = [what for _, what in told_by(work, 2) if isinstance(what, Warned)]
    assert {(what.message, what.category) for what in told} == {("beware", DeprecationWarning), ("beware", UserWarning)}


def test_a_process_that_dies_costs_its_piece_and_is_replaced() -> None:
    def work(piece: int, line: Line) -> None:
        if piece == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if piece == 1:
            os._exit(3)
        line.tell("done")

    told = told_by(work, 4)
    died = {piece: str(what) for piece, what in told if isinstance(what, Died)}
    assert died == {0: "its process was killed by SIGKILL", 1: "its process ended with exit code 3"}
    assert sorted(piece for piece, what in told if what == "done") == [2, 3]


def test_a_process_that_died_with_nothing_to_do_costs_nothing() -> None:
    with Crew(1, lambda _, line: line.tell(os.getpid()), nullcontext) as hands:
        seen = []
        for piece in range(3):
            hands.hand(piece)
            while hands.n_pieces:
                seen += [what for _, what in hands.hear(1) if isinstance(what, int)]
            if piece == 1:
                os.kill(seen[-1], signal.SIGKILL)
                time.sleep(0.2)
    assert seen[0] == seen[1] != seen[2]


def endless(_: int, line: Line) -> None:
    """Work that goes on until an end is asked for."""
    line.tell(os.getpid())
    while True:
        line.check()
        time.sleep(0.01)


def test_who_leaves_the_crew_leaves_nobody_behind() -> None:
    with Crew(2, endless, nullcontext) as hands:
        hands.hand(0)
        hands.hand(1)
        pids = []
        while len(pids) < 2:
            pids += [what for _, what in hands.hear(1)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


ORPHANS = """
from contextlib import nullcontext
from capbench.crew import Crew
from tests.test_crew import endless

with Crew(2, endless, nullcontext) as hands:
    hands.hand(0)
    hands.hand(1)
    while True:
        for _, pid in hands.hear(1):
            print(pid, flush=True)
"""


def test_a_killed_parent_leaves_no_orphans() -> None:
    command = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    until = time.monotonic() + 20
    while any(_is_running(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


ABANDONED = """
from contextlib import nullcontext
from capbench.crew import Crew

def left_halfway():
    with Crew(1, lambda piece, line: None, nullcontext) as hands:
        hands.hand(0)
        yield from hands.hear(1)

kept = left_halfway()
next(kept)
raise SystemExit(7)
"""


def test_a_crew_that_nobody_leaves_ends_with_its_process() -> None:
    assert subprocess.run([sys.executable, "-c", ABANDONED], timeout=60, check=False).returncode == 7


def test_how_many_processes_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert [crew_size(n, CPU) for n in (0, 1, 2, 7)] == [1, 1, 2, 2]
    assert crew_size(7, torch.device("cuda")) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    assert [crew_size(n, CPU) for n in (3, 4, 50)] == [1, 4, 32]
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(crew, "QUOTA", quota)
    for text, n_cores in (("250000 100000", 2), ("max 100000", 32), ("5000 100000", 1)):
        quota.write_text(text)
        assert crew_size(50, CPU) == n_cores
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert crew_size(50, CPU) == 1


class Listener:
    def __init__(self) -> None:
        self.run = self
        self.heard: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *words: self.heard.append((name, words))

    def words(self, name: str) -> list[tuple[object, ...]]:
        return [words for heard, words in self.heard if heard == name]


REGISTRY = load_registry()


def jobs(*loads: int, heads: tuple[int, ...] = (1, 2)) -> list[Job]:
    """Runs at loads, for each number of heads."""
    options = [
        RunOptions("rgr", "mha", sets=(f"arch.n_heads={h}",), preset="smoke", at=at, seeds=2, rates=(0.1,))
        for h in heads
        for at in loads
    ]
    return [Job(f"{o.sets[0]} at {o.at}", build_request(o, REGISTRY), 100) for o in options]


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    store = Store(folder)
    try:
        yield store
    finally:
        store.close()


def test_the_documents_are_those_of_one_process(tmp_path: Path) -> None:
    heard = Listener()
    with opened(tmp_path / "crew") as store:
        ended = list(carry_out(jobs(4, heads=(1, 2, 4)), REGISTRY, store, heard))
        assert store.counts() == (6, 3)
    with opened(tmp_path / "alone") as store:
        for each in ended:
            alone = execute(each.job.request, REGISTRY, store, Listener())
            assert each.result is not None
            assert each.result.run_id == alone.run_id
            assert each.result.environment.threads == 1
            assert {t.key: t.metrics for t in each.result.trials} == {t.key: t.metrics for t in alone.trials}
    assert sorted(each.index for each in ended) == [0, 1, 2]
    assert len(heard.words("trained")) == 6
    assert len(heard.words("ended")) == 3
    assert heard.words("ended")[-1][1] in (None, 0)
    assert sorted(job.label for job, *_ in heard.words("begins")) == sorted(each.job.label for each in ended)


def test_runs_that_differ_in_their_load_are_still_trained_together(tmp_path: Path) -> None:
    heard = Listener()
    with opened(tmp_path) as store:
        ended = list(carry_out(jobs(2, 3, 4), REGISTRY, store, heard))
    assert all(each.result is not None and each.result.timing.trials_trained == 2 for each in ended)
    assert sorted(words[1:] for words in heard.words("plan"))[-2:] == [(6, 0), (6, 0)]


def test_a_run_that_kills_its_process_costs_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = series.execute

    def deadly(request, *rest):
        if request.architecture.plugin.n_heads == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(request, *rest)

    monkeypatch.setattr(series, "execute", deadly)
    with opened(tmp_path) as store:
        ended = list(carry_out(jobs(4, heads=(1, 2, 4)), REGISTRY, store, Listener()))
    reasons = {each.index: each.reason for each in ended}
    assert reasons == {0: "", 1: "its process was killed by SIGKILL", 2: ""}


def test_a_fault_of_all_ends_the_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StoreUnavailable("no room on the disk")

    monkeypatch.setattr(series, "execute", fails)
    with opened(tmp_path) as store, pytest.raises(StoreUnavailable, match="no room on the disk"):
        list(carry_out(jobs(4), REGISTRY, store, Listener()))


def test_one_runs_failure_is_recorded_and_one_warning_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(request, *_: object) -> None:
        warnings.warn("this may fail", UserWarning, stacklevel=1)
        raise RuntimeError("this one broke")

    monkeypatch.setattr(series, "execute", fails)
    with opened(tmp_path) as store, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        ended: list[Ended] = list(carry_out(jobs(4), REGISTRY, store, Listener()))
    assert [each.reason for each in ended] == ["RuntimeError: this one broke"] * 2
    assert [str(each.message) for each in caught] == ["this may fail"]


def test_ctrl_c_ends_all_processes_and_says_how_to_go_on(tmp_path: Path) -> None:
    class Impatient(Listener):
        def ended(self, *_: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with opened(tmp_path) as store:
        with pytest.raises(RunInterrupted, match=r"1 of 9 runs done; all finished trials are stored"):
            list(carry_out(jobs(4, heads=tuple(range(1, 10))), REGISTRY, store, Impatient()))
        assert store.counts()[0] >= 2
        ended = list(carry_out(jobs(4, heads=(1, 2)), REGISTRY, store, Listener()))
    assert ended[0].result is not None
    assert sum(each.result.timing.trials_reused for each in ended if each.result) >= 2


def test_ctrl_c_twice_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(Listener):
        def begins(self, *_: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(series, "execute", lambda *_: time.sleep(120))
    started = time.monotonic()
    with opened(tmp_path) as store, pytest.raises(RunInterrupted, match=r"0 of 2 runs done"):
        list(carry_out(jobs(4), REGISTRY, store, Impatient()))
    assert time.monotonic() - started < 60


def test_the_store_is_not_carried_open_into_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*_: object) -> None:
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        raise RuntimeError(f"open {links.count(tmp_path / 'capbench.sqlite')} times")

    monkeypatch.setattr(series, "execute", count)
    with opened(tmp_path) as store:
        ended = list(carry_out(jobs(4), REGISTRY, store, Listener()))
        assert store.counts() == (0, 0), "it is open here as before"
    assert [each.reason for each in ended] == ["RuntimeError: open 1 times"] * 2, "by the process itself"


SWEEP = ("sweep", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--grid", "arch.n_heads=1,2,4", "--json")


def sweep(home: Path, kill: Callable[[subprocess.Popen[str]], None] | None = None) -> list[dict]:
    environment = {**os.environ, "CAPBENCH_HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-m", "capbench.cli", *SWEEP], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        if kill:
            until, n_before = time.monotonic() + 60, _n_trials(home)
            while _n_trials(home) == n_before and time.monotonic() < until:
                time.sleep(0.02)
            kill(process)
        answer, _ = process.communicate(timeout=300)
    return json.loads(answer) if process.returncode == 0 else []


def _n_trials(home: Path) -> int:
    if not (home / "capbench.sqlite").exists():
        return 0
    with sqlite3.connect(home / "capbench.sqlite") as db:
        try:
            return db.execute("SELECT count(*) FROM trials").fetchone()[0]
        except sqlite3.OperationalError:  # being made
            return 0


@pytest.mark.slow
def test_a_sweep_killed_on_the_way_goes_on_to_the_same_documents(tmp_path: Path) -> None:
    undisturbed, home = sweep(tmp_path / "whole"), tmp_path / "killed"
    for kill in (lambda process: os.killpg(process.pid, signal.SIGKILL), lambda process: process.kill()):
        n_before = _n_trials(home)
        assert sweep(home, kill) == []
        assert _n_trials(home) > n_before
    again = sweep(home)
    for part in ("run_id", "capacity", "trials"):
        assert [document[part] for document in again] == [document[part] for document in undisturbed]
