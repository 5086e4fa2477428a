"""The errors that capbench raises on purpose, and their exit codes.

CapbenchError
├── UserError                   the request cannot be met (exit code 2)
│   ├── UnknownName             no such task, architecture, bound, solver, preset or field
│   ├── BadSetting              a setting has the wrong form, type or value
│   │   └── BadValue            a field does not take this value, whatever the other fields are
│   ├── UnsupportedSignature    this architecture cannot be built for this task
│   ├── LoadOutOfRange          the task cannot make a problem of this load
│   ├── ChangesInTraining       a module is random in training, or changes its buffers
│   ├── CannotConstruct         a constructive solver does not know the pair or the size
│   ├── DeviceUnavailable       this machine does not have the device
│   ├── DeviceFailed            a device stopped working in this process
│   ├── ClusterUnavailable      Ray is not installed, or its cluster cannot be reached
│   ├── WorkersDiffer           a worker has another capbench or other plugins than the driver
│   ├── BadPluginFile           a file named by --plugin is not a plugin
│   ├── BadDocument             a file is not the document that it should be
│   ├── CannotRepeat            a document needs plugins or an engine that are not installed
│   └── StoreUnavailable        the store cannot be read or written
│       └── StoreDamaged        the store's file is damaged
├── NotApplicable               a bound does not apply to this pair (never shown to the user as an error)
└── RunFailed                   the run could not produce a result (exit code 1)
    ├── BoundBroken             a measurement exceeds what is provably possible
    ├── PluginFailed            a plugin could not be loaded and --strict-plugins is set
    ├── PluginMisbehaved        a plugin broke the contract; only its trial fails
    ├── TrialTimedOut           a trial made no progress for the time limit; only it fails
    └── RunInterrupted          stopped by the user; all finished trials are stored (exit code 130)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CapbenchError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UserError(CapbenchError):
    """The request cannot be met; the message gives the rule, what was got, and the remedy."""

    exit_code = 2


class UnknownName(UserError):
    """A name that does not exist."""

    @classmethod
    def among(cls, kind: str, got: str, known: Iterable[str], where: str) -> UnknownName:
        """An error that suggests the nearest known name, and says where all are listed."""
        nearest = nearest_name(got, known)
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        return cls(f"no {kind} named {got!r}{hint} ({where})")


def nearest_name(got: str, known: Iterable[str]) -> str:
    """The known name that is most like another one; empty where none is."""
    return next(iter(difflib.get_close_matches(got, list(known), n=1, cutoff=0.5)), "")


class BadSetting(UserError):
    """A setting of the wrong form, type or range."""


class BadValue(BadSetting):
    """A value that a field does not take, whatever the other fields are."""


class UnsupportedSignature(UserError):
    """An architecture cannot be built for a signature; the message is the reason."""


class LoadOutOfRange(UserError):
    """A load that the task cannot make a problem of."""


class ChangesInTraining(UserError):
    """A module that is random in training or changes its buffers, which the models of a stack cannot do."""


class CannotConstruct(UserError):
    """A constructive solver does not know this pair, or cannot reach the load."""


class DeviceUnavailable(UserError):
    """A device that this machine does not have."""


class DeviceFailed(UserError):
    """A device that stopped working in this process: every later call on it fails, whatever it is for."""


class ClusterUnavailable(UserError):
    """Ray is not installed, or its cluster cannot be reached or used."""


class WorkersDiffer(UserError):
    """A worker of a cluster has other code than the driver; the message names node, plugin, versions and the remedy."""


class BadPluginFile(UserError):
    """A plugin file that cannot be used."""


class BadDocument(UserError):
    """A file that is not the document that it should be; the message names the file, the field and the fix."""


class CannotRepeat(UserError):
    """A document whose run cannot be repeated here; the message says what is missing and how to get it."""


class StoreUnavailable(UserError):
    """The store cannot be opened, read or written."""


class StoreDamaged(StoreUnavailable):
    """The store's file is damaged; `capbench doctor --repair` renames it and saves what can be read."""


class NotApplicable(CapbenchError):
    """Raised by a bound that does not apply to this task, architecture or load; the message is the reason."""


class RunFailed(CapbenchError):
    """The run could not produce a result."""


class BoundBroken(RunFailed):
    """A measurement beyond an upper bound: one of the two is wrong."""


class PluginFailed(RunFailed):
    """A plugin could not be loaded, and --strict-plugins is set."""


class PluginMisbehaved(RunFailed):
    """A task or a module returned a wrong shape, type or number, or changed its inputs."""


class TrialTimedOut(RunFailed):
    """A trial made no progress for the time limit."""


class RunInterrupted(RunFailed):
    """Stopped from the keyboard; finished trials are stored."""

    exit_code = 130
