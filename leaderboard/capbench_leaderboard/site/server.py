"""A local web server to preview the site."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from capbench.errors import BadSetting


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without logging each request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Logs nothing."""


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of a folder that only this machine can reach."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(QuietHandler, directory=str(folder)))
    except OSError as error:
        raise BadSetting(f"--port needs a free port, got {port}: {error}; 0 chooses one") from error
