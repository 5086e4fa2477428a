"""Verification of a result document: summaries derived again, search replayed, a sample of trials run again."""

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

from capbench.documents.result import Machine, Result, Trial, TrialStatus
from capbench.errors import BadDocument, CannotRepeat, CapbenchError
from capbench.executors.backends import open_backend
from capbench.executors.target import ComputeTarget
from capbench.measure.estimate.threshold import ESTIMATOR_VERSION
from capbench.measure.request import Request
from capbench.measure.run import construction
from capbench.measure.session import RunListener, Session
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.verify.rebuild import check_request, rebuild
from capbench.studies.verify.replay import check_keys, check_selection_keys, check_summaries, replay, with_steps
from capbench.studies.verify.suite_cell import check_cell, stated_suite
from capbench.studies.verify.tolerance import MAX_DEVIATING_SHARE, chance_text, deviations, tolerance_text

MAX_FINDINGS = 12


class VerificationStatus(StrEnum):
    """The verdict on a document."""

    VERIFIED = "verified"
    SUMMARIES_WRONG = "summaries wrong"
    NOT_REPRODUCIBLE = "not reproducible"
    CANNOT_RUN = "cannot run"
    OVER_LIMITS = "over limits"


@dataclass(frozen=True)
class Verification:
    """A verdict with its findings, and the sample and tolerance that it is based on."""

    verdict: VerificationStatus
    findings: tuple[str, ...] = ()
    n_sampled: int = 0
    n_trials: int = 0
    tolerance: str = ""
    chance: str = ""
    """With what probability the sample finds changed metrics."""


def verify_result(
    result: Result,
    registry: Registry,
    listener: RunListener,
    n_sample: int,
    seed: int | None = None,
    suite_file: str | None = None,
) -> Verification:
    """Checks a document: its summaries, then its search, then a sample of its trials by running them again."""
    wrong = check_summaries(result)
    # Without the plugins that the document does not name: a bound of theirs would start the search elsewhere.
    plugins = registry.restrict_to({plugin.distribution for plugin in result.environment.plugins} | _origins(result))
    try:
        _check_engine(result, open_backend(ComputeTarget()).machine)  # another version may have other options
        request = rebuild(result, plugins)
    except BadDocument as error:
        return _verification(VerificationStatus.SUMMARIES_WRONG, [*wrong, str(error)])
    except Exception as error:  # noqa: BLE001 - the plugin border: a plugin may fail on fields that it accepts
        return _not_run(wrong, error)
    try:
        wrong += check_cell(result, stated_suite(result.suite, suite_file), plugins) if result.suite else []
    except Exception as error:  # noqa: BLE001 - the plugin border
        return _not_run(wrong, error)
    with tempfile.TemporaryDirectory() as folder:
        session = _session(request, plugins, Path(folder) / "again", listener)
        try:
            wrong += _check_search(result, session, Path(folder) / "replay")
            if wrong:
                return _verification(VerificationStatus.SUMMARIES_WRONG, wrong)
            return _run_samples(result, session, n_sample, seed)
        finally:
            session.store.close()


def _not_run(wrong: Sequence[str], error: Exception) -> Verification:
    """Verdict if the search cannot be replayed: summary errors are still reported."""
    if not isinstance(error, CapbenchError) or is_out_of_memory(str(error)):
        return failed_verification(error, wrong)
    if wrong:
        return _verification(VerificationStatus.SUMMARIES_WRONG, wrong)
    return _verification(VerificationStatus.CANNOT_RUN, [str(error)])


def failed_verification(error: Exception, findings: Sequence[str] = ()) -> Verification:
    """The verdict where an unexpected error ends a verification."""
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(text):
        return _verification(VerificationStatus.OVER_LIMITS, [*findings, "memory: a model or a problem does not fit"])
    return _verification(VerificationStatus.CANNOT_RUN, [*findings, text])


def is_out_of_memory(message: str) -> bool:
    """Whether an error says that memory ran out."""
    return any(
        words in message.lower()
        for words in ("memoryerror", "out of memory", "not enough memory", "status_alloc_failed")
    )


def _origins(result: Result) -> set[str]:
    """The distributions of a document's task, architecture and solver."""
    return {ref.plugin.rpartition(" ")[0] for ref in (result.task, result.architecture, result.solver)}


def _check_search(result: Result, session: Session, folder: Path) -> list[str]:
    """Findings about the request, the trials and the replayed search."""
    try:
        wrong = check_request(session.request, result) + check_keys(result.trials, session)
        wrong += check_selection_keys(result, session)
        constructed = construction(session)
        if constructed is not None and result.constructed is not None:
            wrong += check_keys(result.constructed.trials, constructed)
        return wrong or replay(result, session.request, session.registry, folder)
    except CapbenchError as error:
        return [str(error)]


def _run_samples(result: Result, session: Session, n_sample: int, seed: int | None) -> Verification:
    """Runs samples of the trained trials, of the selection and of the constructed ones again, and compares."""
    # A forger who could predict the sample would forge only the other trials.
    generator = random.SystemRandom() if seed is None else random.Random(seed)
    with _threads(result.environment.threads):
        is_same_kind = _is_same_kind(result, session.backend.machine)
        construction_session = construction(session) if result.constructed else None
        constructed = result.constructed.trials if result.constructed else ()
        selection = result.selection.trials if result.selection else ()
        trained = _run_sample(result.trials, session, n_sample, generator)
        trained += _run_selection_sample(selection, session, n_sample, generator)
        constructed_pairs = (
            _run_sample(constructed, construction_session, n_sample, generator) if construction_session else []
        )
    pairs = [*trained, *constructed_pairs]
    if any(again.status is TrialStatus.FAILED and is_out_of_memory(again.error or "") for _, again in pairs):
        return _verification(VerificationStatus.OVER_LIMITS, ["memory: a trial of the document does not fit"])
    wrong = [line for stated, again in pairs for line in deviations(stated, again, result, is_same_kind)]
    allowed = 0 if is_same_kind else int(len(trained) * MAX_DEVIATING_SHARE)
    verdict = VerificationStatus.NOT_REPRODUCIBLE if len(wrong) > allowed else VerificationStatus.VERIFIED
    n_trials = len(result.trials) + len(selection) + len(constructed)
    parts = [len(part) for part in (result.trials, selection, constructed) if part]
    chance = chance_text(parts, n_sample, allowed)
    return _verification(verdict, wrong, len(pairs), n_trials, tolerance_text(is_same_kind, result), chance)


def _run_sample(
    trials: Sequence[Trial], session: Session, n_sample: int, generator: random.Random
) -> list[tuple[Trial, Trial]]:
    """A sample of the trials, each as stated and as run again; failed ones were run again by the replay."""
    runnable = [t for t in trials if t.status is not TrialStatus.FAILED]
    return _run_again(generator.sample(runnable, min(n_sample, len(runnable))), session)


def _run_again(sample: Sequence[Trial], session: Session) -> list[tuple[Trial, Trial]]:
    """Each of the trials as stated and as run again."""
    for rate in sorted({t.learning_rate for t in sample}, key=lambda rate: rate or 0.0):
        session.measure([(t.at, t.seed - session.first_seed) for t in sample if t.learning_rate == rate], [rate])
    again = {trial.key: trial for trial in session.trials}
    return [(trial, again[trial.key]) for trial in sample]


def _run_selection_sample(
    trials: Sequence[Trial], session: Session, n_sample: int, generator: random.Random
) -> list[tuple[Trial, Trial]]:
    """A sample of the trials by which rate and steps were chosen, each with the steps it was allowed."""
    # Failed ones too: unlike those of the measurement, they were not run again by the replay.
    sample = generator.sample(trials, min(n_sample, len(trials)))
    by_limit = {limit: [t for t in sample if t.limit == limit] for limit in sorted({t.limit or 1 for t in sample})}
    return [pair for limit, own in by_limit.items() for pair in _run_again(own, with_steps(session, limit))]


def _is_same_kind(result: Result, local: Machine) -> bool:
    """Whether numbers must be equal: eager on the CPU, with the same versions, platform and threads everywhere."""
    trained: Sequence[Machine] = result.environment.workers or (result.environment,)
    selection = result.selection.trials if result.selection else ()
    names = ("torch", "device", "device_name", "threads", "platform")
    is_same = all(getattr(machine, name) == getattr(local, name) for machine in trained for name in names)
    return (
        is_same
        and local.device == "cpu"
        and not result.timing.compile_seconds
        and not any(trial.compiled for trial in (*result.trials, *selection))
    )


def _check_engine(result: Result, local: Machine) -> None:
    """Raises CannotRepeat if the document is of another engine or search, whose keys, numbers or trials differ."""
    stated = result.environment
    if stated.engine is not None and stated.engine != local.engine:
        raise CannotRepeat(
            f"the document was made with engine {stated.engine} of capbench {stated.capbench}, here is engine "
            f"{local.engine} of {local.capbench}; install it: pip install 'capbench=={stated.capbench}'"
        )
    if result.protocol.estimator != ESTIMATOR_VERSION:
        raise CannotRepeat(
            f"the document's search is of version {result.protocol.estimator}, here is version {ESTIMATOR_VERSION}; "
            f"install the one it was made with: pip install 'capbench=={stated.capbench}'"
        )


def _session(request: Request, registry: Registry, folder: Path, listener: RunListener) -> Session:
    """A session with an empty store: nothing that was stored before is used."""
    return Session(request, registry, Store(folder), listener, open_backend(request.options.target))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Uses as many threads as the document was made with, if this machine has them: sums depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count if 1 <= count <= (os.cpu_count() or 1) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _verification(
    verdict: VerificationStatus,
    findings: Sequence[str],
    n_sampled: int = 0,
    n_trials: int = 0,
    tolerance: str = "",
    chance: str = "",
) -> Verification:
    """A verification that shows only the first findings."""
    more = len(findings) - MAX_FINDINGS
    shown = [*findings[:MAX_FINDINGS], *([f"and {more} more"] if more > 0 else [])]
    return Verification(verdict, tuple(shown), n_sampled, n_trials, tolerance, chance)
