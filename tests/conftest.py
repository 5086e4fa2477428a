"""What the tests share: a store of their own, distributions made on the spot, and the command as a user types it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

Distribution = Callable[..., None]


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's store."""
    home = tmp_path / "home"
    monkeypatch.setenv("CAPBENCH_HOME", str(home))
    return home


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distribution]:
    """Makes a distribution as pip would leave it: a module, its metadata and its entry points."""
    site, made = tmp_path / "site", []
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name: str, source: str, entry_points: str | None = None, version: str = "1.2") -> None:
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points or f"[capbench]\n{module} = {module}\n")
        sys.modules.pop(module, None)
        made.append(module)

    yield make
    for module in made:  # a later test may make another distribution of the same name
        sys.modules.pop(module, None)


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@pytest.fixture
def capbench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Runs the program's entry point in this process: exit code, stdout and stderr."""
    import warnings

    from capbench.cli.main import main

    def run(*words: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["capbench", *words])
        capfd.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return run


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Installs a project with pip, into a folder of its own."""
    site = tmp_path / "installed"

    def install(project: Path) -> None:
        source = tmp_path / "sources" / project.name  # builds leave files behind
        shutil.copytree(project, source)
        words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site)]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *words, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        monkeypatch.syspath_prepend(str(site))

    return install
