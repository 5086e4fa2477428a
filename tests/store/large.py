"""A store of many trials and the runs made of them, written in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from capbench.documents.result import Result, Trial, TrialStatus
from capbench.store.queries import StoredRun, StoredTrial
from capbench.store.store import Store
from tests.leaderboard.synthetic import SyntheticRecord


def fill(folder: Path, n_trials: int, trials_per_run: int = 100) -> None:
    """Stores trials with the seeds from 0, and a run for every so many of them."""
    store, template = Store(folder), SyntheticRecord().result()
    store.import_rows(
        (StoredTrial("rgr", "mha", _moment(seed), _trial(seed)) for seed in range(n_trials)),
        _runs(template, n_trials, trials_per_run),
    )
    store.close()


def _runs(template: Result, n_trials: int, trials_per_run: int) -> Iterator[StoredRun]:
    for number, start in enumerate(range(0, n_trials, trials_per_run)):
        trials = tuple(_trial(seed) for seed in range(start, start + trials_per_run))
        run = template.model_copy(update={"run_id": f"{number:012x}", "trials": trials})
        yield StoredRun(_moment(start), run)


def _trial(seed: int) -> Trial:
    metrics = {"f1": 1 / (1 + seed), "bits": float(seed), "bits_per_parameter": seed / 1007}
    return Trial(
        key=f"{seed:032x}",
        load=8 + seed % 256,
        seed=seed,
        learning_rate=0.1,
        status=TrialStatus.NOT_HELD,
        steps=50,
        metrics=metrics,
    )


def _moment(number: int) -> str:
    minutes, seconds = divmod(number, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"2030-01-{days + 1:02}T{hours:02}:{minutes:02}:{seconds:02}+00:00"
