"""stdout belongs to the answer: what plugins print on the way goes to stderr, where progress goes."""

from __future__ import annotations

import contextlib
import sys


def plugins_print_to_stderr() -> contextlib.AbstractContextManager[object]:
    """A scope in which whatever is printed ends up on stderr."""
    return contextlib.redirect_stdout(sys.stderr)
