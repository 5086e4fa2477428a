"""A result document checked by somebody else: its summaries re-derived, its search replayed, some trials run again."""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from capbench.consistency import EXACT, check_keys, check_summaries, place, replay, trial_name
from capbench.errors import CannotRepeat, CapbenchError
from capbench.executors.workplace import open_workplace
from capbench.measurement import Measurement, Progress
from capbench.rebuild import check_request, rebuild
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Machine, Result, Trial, TrialStatus
from capbench.store import Store

CLOSE = 0.02
"""How far a metric may be off on another machine before a changed verdict counts: training is chaotic there."""
ASTRAY = 1 / 8
"""Share of the sample that may go astray on another machine; none may on the same kind of machine."""
MOST_FINDINGS = 12


class Verdict(StrEnum):
    """What a check comes to."""

    VERIFIED = "verified"
    SUMMARIES_WRONG = "summaries wrong"
    NOT_REPRODUCIBLE = "not reproducible"
    CANNOT_RUN = "cannot run"


@dataclass(frozen=True)
class Recheck:
    """A verdict, what it rests on, and what was found wrong."""

    verdict: Verdict
    findings: tuple[str, ...] = ()
    n_sampled: int = 0
    n_trials: int = 0
    tolerance: str = ""


def recheck(result: Result, registry: Registry, progress: Progress, n_sample: int, seed: int | None = None) -> Recheck:
    """Checks a document: first against itself, then against the search, then by running a sample of its trials."""
    wrong = check_summaries(result)
    try:
        request = rebuild(result, registry)
        _check_engine(result, open_workplace(request.where).machine)
    except CapbenchError as error:
        return _ended(Verdict.SUMMARIES_WRONG, wrong) if wrong else _ended(Verdict.CANNOT_RUN, [str(error)])
    with tempfile.TemporaryDirectory() as folder:
        run = _measurement(request, registry, Path(folder) / "again", progress)
        try:
            wrong += _check_search(result, run, Path(folder) / "replay")
            return _ended(Verdict.SUMMARIES_WRONG, wrong) if wrong else _run_sample(result, run, n_sample, seed)
        finally:
            run.store.close()


def _check_search(result: Result, run: Measurement, folder: Path) -> list[str]:
    """What is wrong with the request, the trials or what the search makes of them."""
    try:
        wrong = check_request(run.request, result) + check_keys(result, run)
        return wrong or replay(result, run.request, run.registry, folder)
    except CapbenchError as error:
        return [str(error)]


def _run_sample(result: Result, run: Measurement, n_sample: int, seed: int | None) -> Recheck:
    """Runs some of the trials again, for real, and compares."""
    # A sample that could be foreseen would tell a forger which trials to leave honest.
    chance = random.SystemRandom() if seed is None else random.Random(seed)
    runnable = [t for t in result.trials if t.status is not TrialStatus.FAILED]
    sample = chance.sample(runnable, min(n_sample, len(runnable)))
    with _threads(result.environment.threads):
        for rate in sorted({t.learning_rate for t in sample}, key=lambda rate: rate or 0.0):
            run.measure([(place(t), t.seed) for t in sample if t.learning_rate == rate], [rate])
        is_alike = _is_alike(result, run.workplace.machine)
    again = {trial.key: trial for trial in run.trials}
    wrong = [line for trial in sample for line in _astray(trial, again[trial.key], result, is_alike)]
    allowed = 0 if is_alike else int(len(sample) * ASTRAY)
    verdict = Verdict.NOT_REPRODUCIBLE if len(wrong) > allowed else Verdict.VERIFIED
    return _ended(verdict, wrong, len(sample), len(result.trials), _tolerance(is_alike, result))


def _astray(stated: Trial, again: Trial, result: Result, is_alike: bool) -> Iterator[str]:
    """Says so where a trial came out otherwise."""
    name = result.protocol.criterion.metric
    was, now = stated.metrics.get(name), again.metrics.get(name)
    gap = math.inf if was is None or now is None else abs(was - now)
    same_verdict = (stated.status is TrialStatus.HELD) == (again.status is TrialStatus.HELD)
    agrees = same_verdict and (gap <= EXACT or was == now) if is_alike else same_verdict or gap <= CLOSE
    if not agrees:
        stated_as, came_out = f"{stated.status.value}, {name} {was}", f"{again.status.value}, {name} {now}"
        yield f"trials: {trial_name(stated)}: stated {stated_as}; run again {came_out}"


def _tolerance(is_alike: bool, result: Result) -> str:
    metric = result.protocol.criterion.metric
    if is_alike:
        return f"same kind of machine: equal verdicts, {metric} within {EXACT:g}"
    return (
        f"another kind of machine: equal verdicts or {metric} within {CLOSE:g}, for all but {ASTRAY:.3g} of the sample"
    )


def _is_alike(result: Result, here: Machine) -> bool:
    """Whether numbers should come out equal: eager on the CPU, the same versions, platform and threads everywhere."""
    trained: Sequence[Machine] = result.environment.workers or (result.environment,)
    names = ("torch", "device", "device_name", "threads", "platform")
    same = all(getattr(there, name) == getattr(here, name) for there in trained for name in names)
    return same and here.device == "cpu" and not result.timing.compile_seconds


def _check_engine(result: Result, here: Machine) -> None:
    """Another engine makes other keys and other numbers: nothing could be compared."""
    there = result.environment
    if there.engine is not None and there.engine != here.engine:
        raise CannotRepeat(
            f"the document was made with engine {there.engine} of capbench {there.capbench}, here is engine "
            f"{here.engine} of {here.capbench}; install it: pip install 'capbench=={there.capbench}'"
        )


def _measurement(request: Request, registry: Registry, folder: Path, progress: Progress) -> Measurement:
    """A measurement with an empty store of its own: nothing that was stored before is believed."""
    return Measurement(request, request.check(), registry, Store(folder), progress, open_workplace(request.where))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """As many threads as the document was made with, where this machine has them: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count if 1 <= count <= (os.cpu_count() or 1) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ended(
    verdict: Verdict, findings: Sequence[str], n_sampled: int = 0, n_trials: int = 0, tolerance: str = ""
) -> Recheck:
    more = len(findings) - MOST_FINDINGS
    shown = [*findings[:MOST_FINDINGS], *([f"and {more} more"] if more > 0 else [])]
    return Recheck(verdict, tuple(shown), n_sampled, n_trials, tolerance)
