"""The site on this machine's own address, for a look."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from capbench.errors import BadSetting


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Says nothing."""


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of a folder that only this machine can reach."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(Quiet, directory=str(folder)))
    except OSError as error:
        raise BadSetting(f"--port needs a free port, got {port}: {error}; 0 chooses one") from error
