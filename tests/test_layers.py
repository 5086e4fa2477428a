"""Imports point downwards, the core knows no plugin, and built-ins use only what a third party can."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_import_layers_are_kept() -> None:
    program = shutil.which("lint-imports") or str(Path(__import__("sys").executable).parent / "lint-imports")
    if not Path(program).exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_built_ins_take_everything_from_the_package_root() -> None:
    """`from capbench import …` is all that a plugin author needs, so it is all that the built-ins use."""
    for path in [*ROOT.glob("tasks/**/*.py"), *ROOT.glob("plugins/**/*.py")]:
        for line in path.read_text().splitlines():
            assert not line.startswith(("from capbench.", "import capbench.")), f"{path.name}: {line}"


def test_names_that_torch_does_not_promise_stand_in_one_file() -> None:
    """The next version of torch can then break one file, which says what it was tested with."""
    private = re.compile(r"torch(\.\w+)*\._[a-z]\w*|\._(cdata|version)\b")
    kept = ROOT / "capbench/engine/torch_private.py"
    packages = ("capbench", "plugins", "tasks", "leaderboard")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py") if path != kept]
    found = {path.name: name.group() for path in sources if (name := private.search(path.read_text()))}
    assert not found
    assert private.search(kept.read_text())
