"""What `capbench doctor` reports: versions, devices, plugins and the state of the store."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import torch

from capbench import __version__
from capbench.documents.result import Record
from capbench.documents.text import plain, pluralize, table
from capbench.errors import StoreUnavailable
from capbench.registry.registry import Registry
from capbench.store.store import Store, home
from capbench.store.tables import REPAIR_REMEDY
from capbench.studies.self_test import COMPARED_STEPS, SelfTest, Speed

LIBRARIES = ("torch", "numpy", "scipy", "pydantic", "pluggy", "click", "altair", "rich")


class Health(Record):
    """Versions, devices, plugins and the store, and whether a run would work."""

    capbench: str
    python: str
    platform: str
    libraries: dict[str, str]
    devices: tuple[str, ...]
    cores: int
    threads: int
    store: str
    store_status: str
    n_trials: int
    n_runs: int
    failed_plugins: tuple[str, ...]
    healthy: bool


def check_health(registry: Registry) -> Health:
    """Checks everything once. Opens the store, which creates it if there is none."""
    status, n_trials, n_runs = _store()
    return Health(
        capbench=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        libraries={name: version(name) for name in LIBRARIES},
        devices=_devices(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        store=str(home()),
        store_status=status,
        n_trials=n_trials,
        n_runs=n_runs,
        failed_plugins=tuple(str(failure) for failure in registry.failures),
        healthy=status == "ok" and not registry.failures,
    )


def health_text(found: Health, width: int | None = None) -> str:
    """The health report as text, within a width if one is given."""
    stored = f"{pluralize(found.n_trials, 'trial')}, {pluralize(found.n_runs, 'run')}"
    rows = [
        ("capbench", found.capbench),
        ("python", f"{found.python}, {found.platform}"),
        ("libraries", ", ".join(f"{name} {release}" for name, release in found.libraries.items())),
        ("devices", ", ".join(found.devices)),
        ("cores", f"{found.cores}; torch threads: {found.threads}"),
        ("store", f"{found.store}: {found.store_status}, {stored}"),
        *(("plugin", failure) for failure in found.failed_plugins),
    ]
    verdict = "all is well" if found.healthy else "something needs attention"
    return table(rows, ("", ""), width) + f"\n\n{plain(verdict)}"


def _store() -> tuple[str, int, int]:
    try:
        store = Store(home())
        try:
            verdict = store.check_integrity()
            return (
                verdict if verdict == "ok" else f"damaged ({' '.join(verdict.split())}); {REPAIR_REMEDY}",
                *store.counts(),
            )
        finally:
            store.close()
    except StoreUnavailable as error:
        return str(error), 0, 0


def _devices() -> tuple[str, ...]:
    cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ("cpu", *cuda, *mps)


def self_test_text(found: SelfTest, width: int | None = None) -> str:
    """The self-test of a device as text, within a width if one is given; the last line says whether it is ready."""
    launches = "" if found.launches_per_step is None else f", {found.launches_per_step} launches of kernels"
    cuda = f", CUDA {found.cuda}" if found.cuda else ""
    rows = [
        ("device", f"{found.device}: {found.device_name}"),
        ("versions", f"capbench {found.capbench}, torch {found.torch}{cuda}, python {found.python}, {found.platform}"),
        ("free memory", f"{found.free_bytes / 1e9:.1f} GB"),
        ("pair", found.pair),
        ("verdicts", f"{found.equal_verdicts} of {found.trials} as on the CPU"),
        ("difference", f"{found.largest_difference:.1e} of a parameter at most, after {COMPARED_STEPS} steps"),
        ("compiled", _compiled_text(found)),
        ("step", f"{found.operations_per_step} operations, {found.host_waits_per_step} waits of the host{launches}"),
        ("evaluation", f"{found.operations_per_evaluation} operations"),
        *(("speed", _speed_text(speed)) for speed in found.speeds),
        ("group size", f"{found.group_size} lanes"),
    ]
    verdict = f"{found.device} is ready" if found.ready else f"{found.device} is not ready: {'; '.join(found.problems)}"
    return table(rows, ("", ""), width) + f"\n\n{plain(verdict)}"


def _compiled_text(found: SelfTest) -> str:
    if found.compiled_difference is None:
        return f"no: {found.eager_reason}; steps run eagerly"
    return f"{found.compiled_difference:.1e} of a parameter at most, after {COMPARED_STEPS} steps"


def _speed_text(speed: Speed) -> str:
    if speed.lane_steps_per_second is None:
        return f"not measured at {speed.lanes} lanes, which take too long or too much memory"
    return f"{speed.lane_steps_per_second:,.0f} lane-steps per second at {speed.lanes} lanes"
