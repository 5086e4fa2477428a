"""Everything capbench raises on purpose, and the exit code each ends in.

CapbenchError
├── UserError                   the request cannot be met as asked (exit code 2)
│   ├── UnknownName             no such task, architecture, bound, solver, preset or field
│   ├── BadSetting              a setting has the wrong form or value
│   ├── UnsupportedSignature    this architecture cannot be built for this task
│   ├── LoadOutOfRange          more facts, or fewer, than the task has
│   ├── CannotConstruct         a constructive solver does not know the pair or the size
│   ├── DeviceUnavailable       the device asked for is not here
│   ├── ClusterUnavailable      no Ray, or no cluster that answers
│   ├── WorkersDiffer           a worker has another capbench or other plugins than the driver
│   ├── BadPluginFile           a file named by --plugin is not a plugin
│   ├── BadDocument             a file from elsewhere is not the document it should be
│   ├── CannotRepeat            a document was made with plugins or an engine that are not here
│   └── StoreUnavailable        the store cannot be read or written
│       └── StoreTorn           the store's file is damaged
├── NotApplicable               a bound has nothing to say of this pair (never reaches the user as an error)
└── RunFailed                   the run itself went wrong (exit code 1)
    ├── BoundBroken             a measurement exceeds what is provably possible
    ├── PluginFailed            a plugin could not be loaded and --strict-plugins is set
    ├── PluginMisbehaved        a plugin returned what it may not; costs that trial
    ├── TrialTimedOut           nothing moved for the time limit; costs that trial
    └── RunInterrupted          stopped by the user; all finished trials are stored (exit code 130)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CapbenchError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UserError(CapbenchError):
    """The request cannot be met as asked; the message says the rule, what was got, and the remedy."""

    exit_code = 2


class UnknownName(UserError):
    """A name that nothing answers to."""

    @classmethod
    def among(cls, kind: str, got: str, known: Iterable[str], where: str) -> UnknownName:
        """Names the nearest known name, and where to see them all."""
        nearest = difflib.get_close_matches(got, list(known), n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        return cls(f"no {kind} named {got!r}{hint} ({where})")


class BadSetting(UserError):
    """A setting of the wrong form, type or range."""


class UnsupportedSignature(UserError):
    """An architecture cannot be built for a signature; the message is the reason."""


class LoadOutOfRange(UserError):
    """A load that the task cannot make a problem of."""


class CannotConstruct(UserError):
    """A constructive solver does not know this pair, or is asked for more than it can do."""


class DeviceUnavailable(UserError):
    """A device that this machine does not have."""


class ClusterUnavailable(UserError):
    """Ray is not installed, or its cluster cannot be reached or used."""


class WorkersDiffer(UserError):
    """A worker of a cluster has not what the driver has; the message names node, plugin, versions and the remedy."""


class BadPluginFile(UserError):
    """A file that was named as a plugin and cannot be used as one."""


class BadDocument(UserError):
    """A file that is not what it should be; the message names the file, the field and the fix."""


class CannotRepeat(UserError):
    """A document that cannot be repeated here; the message says what is missing and how to get it."""


class StoreUnavailable(UserError):
    """The store cannot be opened, read or written."""


class StoreTorn(StoreUnavailable):
    """The store's file is damaged; `capbench doctor --repair` sets it aside and saves what can be read."""


class NotApplicable(CapbenchError):
    """Raised by a bound that does not speak of this task, architecture or load; the message is the reason."""


class RunFailed(CapbenchError):
    """The run could not produce a result."""


class BoundBroken(RunFailed):
    """A measurement beyond an upper bound: one of the two is wrong."""


class PluginFailed(RunFailed):
    """A plugin could not be loaded where that was asked to be fatal."""


class PluginMisbehaved(RunFailed):
    """A task or a module returned a wrong shape, type or number, or changed what it was only lent."""


class TrialTimedOut(RunFailed):
    """A trial showed no sign of progress for the time limit."""


class RunInterrupted(RunFailed):
    """Stopped from the keyboard; what had finished is stored."""

    exit_code = 130
