"""The run of a suite: each entry carried out, its record written at once, and what is missing kept up to date."""

from __future__ import annotations

from capbench.plan import Entry, Plan
from capbench.records import RecordFolder
from capbench.registry import Registry
from capbench.results import MissingRecord, Result
from capbench.series import Job, SeriesProgress, carry_out
from capbench.store import Store


def run_plan(
    plan: Plan, registry: Registry, store: Store, folder: RecordFolder, progress: SeriesProgress
) -> tuple[list[Result], list[MissingRecord]]:
    """Carries out a plan; returns the records that there are, and what is missing with the reason."""
    jobs = [_job(entry) for entry in plan.entries]
    results: dict[int, Result] = {}
    missing = list(plan.missing)
    covered = {(row.task, row.architecture, row.tier) for row in missing}
    folder.write_missing(missing, covered)
    for ended in carry_out(jobs, registry, store, progress):
        entry = plan.entries[ended.index]
        covered.add(entry.place_name)
        if ended.result is None:
            missing.append(_failed(entry, ended.reason))
        else:
            results[ended.index] = folder.write(ended.result, entry.place, store)
        folder.write_missing(missing, covered)
    return [results[index] for index in sorted(results)], missing


def _job(entry: Entry) -> Job:
    label = f"{entry.task} × {entry.architecture} at {entry.place.tier:,}"
    return Job(label, entry.request, entry.n_parameters)


def _failed(entry: Entry, reason: str) -> MissingRecord:
    return MissingRecord(
        task=entry.task, architecture=entry.architecture, tier=entry.place.tier, reason=f"failed: {reason}"
    )
