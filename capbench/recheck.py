"""A result document checked by somebody else: its summaries re-derived, its search replayed, some trials run again."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from capbench.agreement import ASTRAY, astray, tolerance_text
from capbench.consistency import check_keys, check_summaries, place, replay
from capbench.errors import CannotRepeat, CapbenchError
from capbench.executors.workplace import open_workplace
from capbench.measurement import Measurement, Progress
from capbench.rebuild import check_request, rebuild
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Machine, Result, Trial, TrialStatus
from capbench.runner import construction
from capbench.store import Store
from capbench.suite_place import check_place, stated_suite

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


def recheck(
    result: Result,
    registry: Registry,
    progress: Progress,
    n_sample: int,
    seed: int | None = None,
    suite_file: str | None = None,
) -> Recheck:
    """Checks a document: first against itself, then against the search, then by running a sample of its trials."""
    wrong = check_summaries(result)
    # What else is installed here was not there: another bound would start the search elsewhere.
    there = registry.only({plugin.distribution for plugin in result.environment.plugins} | _origins(result))
    try:
        request = rebuild(result, there)
        _check_engine(result, open_workplace(request.where).machine)
        wrong += check_place(result, stated_suite(result.suite, suite_file), there) if result.suite else []
    except CapbenchError as error:
        return _ended(Verdict.SUMMARIES_WRONG, wrong) if wrong else _ended(Verdict.CANNOT_RUN, [str(error)])
    except Exception as error:  # noqa: BLE001 - the plugin border: fields that a plugin takes and then stumbles over
        return _ended(Verdict.CANNOT_RUN, [*wrong, f"{type(error).__name__}: {error}"])
    with tempfile.TemporaryDirectory() as folder:
        run = _measurement(request, there, Path(folder) / "again", progress)
        try:
            wrong += _check_search(result, run, Path(folder) / "replay")
            return _ended(Verdict.SUMMARIES_WRONG, wrong) if wrong else _run_samples(result, run, n_sample, seed)
        finally:
            run.store.close()


def _origins(result: Result) -> set[str]:
    """The distributions that a document's own plugins are of."""
    return {ref.plugin.rpartition(" ")[0] for ref in (result.task, result.architecture, result.solver)}


def _check_search(result: Result, run: Measurement, folder: Path) -> list[str]:
    """What is wrong with the request, the trials or what the search makes of them."""
    try:
        wrong = check_request(run.request, result) + check_keys(result.trials, run)
        side = construction(run)
        if side is not None and result.constructed is not None:
            wrong += check_keys(result.constructed.trials, side)
        return wrong or replay(result, run.request, run.registry, folder)
    except CapbenchError as error:
        return [str(error)]


def _run_samples(result: Result, run: Measurement, n_sample: int, seed: int | None) -> Recheck:
    """Runs some of the trials again, for real, and as many of those by explicit weights, and compares."""
    # A sample that could be foreseen would tell a forger which trials to leave honest.
    chance = random.SystemRandom() if seed is None else random.Random(seed)
    with _threads(result.environment.threads):
        is_alike = _is_alike(result, run.workplace.machine)
        side = construction(run) if result.constructed else None
        constructed = result.constructed.trials if result.constructed else ()
        trained = _run_sample(result.trials, run, n_sample, chance)
        written = _run_sample(constructed, side, n_sample, chance) if side else []
    pairs = [*trained, *written]
    wrong = [line for stated, again in pairs for line in astray(stated, again, result, is_alike)]
    allowed = 0 if is_alike else int(len(trained) * ASTRAY)
    verdict = Verdict.NOT_REPRODUCIBLE if len(wrong) > allowed else Verdict.VERIFIED
    n_trials = len(result.trials) + len(constructed)
    return _ended(verdict, wrong, len(pairs), n_trials, tolerance_text(is_alike, result))


def _run_sample(
    trials: Sequence[Trial], run: Measurement, n_sample: int, chance: random.Random
) -> list[tuple[Trial, Trial]]:
    """Some of the trials as they are stated and as they come out now; failed ones were run again by the replay."""
    runnable = [t for t in trials if t.status is not TrialStatus.FAILED]
    sample = chance.sample(runnable, min(n_sample, len(runnable)))
    for rate in sorted({t.learning_rate for t in sample}, key=lambda rate: rate or 0.0):
        run.measure([(place(t), t.seed) for t in sample if t.learning_rate == rate], [rate])
    again = {trial.key: trial for trial in run.trials}
    return [(trial, again[trial.key]) for trial in sample]


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
