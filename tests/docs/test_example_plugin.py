"""The example distribution: installed like any other, run, and checked by the conformance kit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-plugin"


@pytest.mark.slow
def test_the_example_plugin_installs_runs_and_keeps_the_contract(capbench, installed) -> None:
    installed(EXAMPLE)
    assert "capbench-memory 0.1.0" in capbench("list").out
    done = capbench("run", "--task", "profiles", "--arch", "hopfield_memory", "--preset", "smoke")
    assert done.code == 0, done.err
    assert re.search(r"capacity .*attributes", done.out)
    matched = "run --task profiles --arch mlp --match hopfield_memory --preset smoke --at 16 --seeds 2"
    assert capbench(*shlex.split(matched)).code == 0
    assert capbench("run", "--task", "triples", "--arch", "hopfield_memory", "--preset", "smoke", "--at", "8").code == 0
    checked = capbench("check", "capbench-memory", "--no-compile")
    assert checked.code == 0, checked.out


@pytest.mark.slow
def test_the_example_plugins_own_tests_pass(installed, tmp_path) -> None:
    installed(EXAMPLE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    source = tmp_path / "sources" / EXAMPLE.name
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


@pytest.fixture(autouse=True)
def forget_the_example() -> Iterator[None]:
    """Removes what a test imported, so that the next one imports it again."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "capbench_memory"]:
        del sys.modules[name]
