"""`leaderboard serve`: the site on the loopback address, until Ctrl-C."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.leaderboard.synthetic import SyntheticRecord, write_record


@pytest.fixture
def records(tmp_path: Path) -> Path:
    write_record(tmp_path / "records", SyntheticRecord())
    return tmp_path / "records"


def test_the_site_is_served_until_ctrl_c(records: Path) -> None:
    arguments = ["leaderboard", "serve", "--records", str(records), "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "capbench.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores Ctrl-C for background jobs, and child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert server.stdout is not None
    try:
        found = re.match(r"(http://127\.0\.0\.1:\d+/) \(stop with Ctrl-C\)", server.stdout.readline())
        assert found is not None
        with urlopen(found[1], timeout=60) as answer:
            assert b"1 record of 1 architecture on 1 task" in answer.read()
        with urlopen(f"{found[1]}assets/board.js", timeout=60) as answer:
            assert answer.headers.get_content_type() == "text/javascript"
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{found[1]}..%2f..%2fetc%2fpasswd", timeout=60)
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (0, "")


def test_a_port_in_use_is_an_error_with_a_remedy(records: Path, capbench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = capbench("leaderboard", "serve", "--records", str(records), "--port", port)
    assert done.code == 2
    assert f"--port needs a free port, got {port}" in done.err
