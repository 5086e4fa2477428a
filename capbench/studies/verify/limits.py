"""Limits of a verification: what a document may ask for, and the child process that is held to it.

A document chooses what `verify` computes. So its sizes are checked before anything is built, and what is built runs in
a process of its own, which is ended when it takes more time, memory, disk or processes than a verification may.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from capbench.documents.result import Result
from capbench.errors import CapbenchError, RunFailed, UserError
from capbench.measure.session import RunListener
from capbench.registry.registry import Registry
from capbench.studies.verify.verify import Verification, VerificationStatus, failed_verification, verify_result

POLL_SECONDS = 0.25
REMEDY = "raise the limit (capbench leaderboard verify --help) if you trust the document"


@dataclass(frozen=True)
class Limits:
    """What a document may ask of a verification, and what the verification may take."""

    seconds: float = 1800.0
    memory: int = 4 * 2**30
    """Bytes of all its processes together, as the system counts what they do not share."""
    disk: int = 2**30
    processes: int = 2 * (os.cpu_count() or 1) + 16
    parameters: int = 10**7
    steps: int = 10**6
    trials: int = 10**4


@dataclass(frozen=True)
class VerifyTask:
    """A document to verify, and how: what crosses to the child process."""

    result: Result
    load_plugins: Callable[[], Registry]
    open_listener: Callable[[], AbstractContextManager[RunListener]]
    n_sample: int
    seed: int | None = None
    suite_file: str | None = None

    def run(self) -> Verification:
        """Verifies in this process, without limits."""
        with self.open_listener() as listener:
            return verify_result(self.result, self.load_plugins(), listener, self.n_sample, self.seed, self.suite_file)


def verify_within_limits(task: VerifyTask, limits: Limits) -> Verification:
    """Verifies a document in a child process; one that asks for too much is refused or cut off."""
    excess = list(excesses(task.result, limits))
    if excess:
        return Verification(VerificationStatus.OVER_LIMITS, tuple(f"{line}; {REMEDY}" for line in excess))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = _start(task, limits, folder, sender)
        sender.close()
        try:
            return _wait(child, receiver, Path(folder), limits)
        finally:
            _end(child)
            receiver.close()


def _start(task: VerifyTask, limits: Limits, folder: str, sender: Connection) -> BaseProcess:
    arguments = (task, limits, folder, sender)
    child: BaseProcess
    if sys.platform == "linux":
        child = multiprocessing.get_context("fork").Process(target=_verify_in_child, args=arguments)
    else:
        child = multiprocessing.get_context("spawn").Process(target=_verify_in_child, args=arguments)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*fork\(\)")  # the child uses nothing of this process's threads
        child.start()
    return child


def excesses(result: Result, limits: Limits) -> Iterator[str]:
    """What a document states and may not ask for."""
    selection = result.selection.trials if result.selection else ()
    constructed = result.constructed.trials if result.constructed else ()
    trials = (*result.trials, *selection, *constructed)
    asked = {
        "n_parameters": (result.n_parameters, limits.parameters),
        "protocol.steps": (result.protocol.steps, limits.steps),
        "trials.limit": (max((trial.limit or 0 for trial in trials), default=0), limits.steps),
        "trials": (len(trials), limits.trials),
    }
    for name, (stated, most) in asked.items():
        if stated > most:
            yield f"{name}: at most {most:,} may be asked for, got {stated:,}"


def _wait(child: BaseProcess, receiver: Connection, folder: Path, limits: Limits) -> Verification:
    """The child's answer, or the limit that it broke."""
    deadline = time.monotonic() + limits.seconds
    while not receiver.poll(POLL_SECONDS):
        broken = _broken_limit(child, folder, limits, deadline)
        if broken:
            return Verification(VerificationStatus.OVER_LIMITS, (f"{broken}; {REMEDY}",))
    try:
        answer = json.loads(receiver.recv_bytes())  # bytes, not objects: the child computes what a stranger asked for
    except EOFError:
        child.join()
        return Verification(
            VerificationStatus.OVER_LIMITS,
            (f"the process of the verification was ended by the system (exit code {child.exitcode}); {REMEDY}",),
        )
    if "error" in answer:
        raise (UserError if answer["exit_code"] == UserError.exit_code else RunFailed)(answer["error"])
    return Verification(
        **{**answer, "verdict": VerificationStatus(answer["verdict"]), "findings": tuple(answer["findings"])}
    )


def _broken_limit(child: BaseProcess, folder: Path, limits: Limits, deadline: float) -> str:
    """The limit that the verification exceeds at this moment; empty if none."""
    processes = list(_session_of(child.pid or 0))
    memory = sum(map(_memory, processes))
    disk = _bytes_in(folder)
    if time.monotonic() > deadline:
        return f"time: it took more than {limits.seconds:g} s"
    if memory > limits.memory:
        return f"memory: it took more than {limits.memory / 2**30:g} GiB"
    if disk > limits.disk:
        return f"disk: it wrote more than {limits.disk / 2**30:g} GiB"
    if len(processes) > limits.processes:
        return f"processes: it started more than {limits.processes}"
    return ""


def _session_of(leader: int) -> Iterator[int]:
    """The processes of a session, as Linux lists them; nothing elsewhere."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[3]) == leader:
                yield int(stat.parent.name)


def _memory(pid: int) -> int:
    """The bytes of a process, its part of what it shares with others included."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0


def _bytes_in(folder: Path) -> int:
    """The size of all files of a folder in which another process makes and removes files meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):  # passes over folders that are gone
        for name in names:
            with suppress(OSError):
                size += Path(parent, name).lstat().st_size
    return size


def _end(child: BaseProcess) -> None:
    """Ends the child and all that it has started."""
    if hasattr(os, "killpg") and child.pid is not None:
        with suppress(ProcessLookupError, PermissionError):  # it may not lead its group yet, or be gone
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.join()


def _verify_in_child(task: VerifyTask, limits: Limits, folder: str, sender: Connection) -> None:
    """Verifies under the system's own limits and sends the answer as JSON."""
    if hasattr(os, "setsid"):
        os.setsid()  # so that all that it starts can be counted and ended together
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    _set_system_limits(limits)
    try:
        answer: dict[str, object] = asdict(task.run())
    except CapbenchError as error:
        answer = {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:  # noqa: BLE001 - whatever a document makes of it, there is a verdict
        answer = asdict(failed_verification(error))
    sender.send_bytes(json.dumps(answer).encode())
    sender.close()


def _set_system_limits(limits: Limits) -> None:
    """Limits that the system enforces at once, where it has them: a single large allocation, a single large file."""
    try:
        import resource
    except ImportError:  # Windows
        return
    present = 0
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        present = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    for name, value in (
        (resource.RLIMIT_DATA, present + limits.memory),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (most, most))
