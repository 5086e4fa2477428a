"""Everything capbench raises on purpose, and the exit code each ends in.

CapbenchError
├── UserError                   the request cannot be met as asked (exit code 2)
│   ├── UnknownName             no such task, architecture, bound, solver, preset or field
│   ├── BadSetting              a setting has the wrong form or value
│   ├── UnsupportedSignature    this architecture cannot be built for this task
│   ├── LoadOutOfRange          more facts, or fewer, than the task has
│   ├── CannotConstruct         a constructive solver does not know the pair or the size
│   ├── DeviceUnavailable       the device asked for is not here
│   └── StoreUnavailable        the store cannot be read or written
├── NotApplicable               a bound has nothing to say of this pair (never reaches the user as an error)
└── RunFailed                   the run itself went wrong (exit code 1)
    ├── BoundBroken             a measurement exceeds what is provably possible
    ├── PluginFailed            a plugin could not be loaded and --strict-plugins is set
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


class StoreUnavailable(UserError):
    """The store cannot be opened, read or written."""


class NotApplicable(CapbenchError):
    """Raised by a bound that does not speak of this task, architecture or load; the message is the reason."""


class RunFailed(CapbenchError):
    """The run could not produce a result."""


class BoundBroken(RunFailed):
    """A measurement beyond an upper bound: one of the two is wrong."""


class PluginFailed(RunFailed):
    """A plugin could not be loaded where that was asked to be fatal."""


class RunInterrupted(RunFailed):
    """Stopped from the keyboard; what had finished is stored."""

    exit_code = 130
