"""What the tests share: a store of their own, distributions made on the spot, and the command as a user types it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from capbench.documents.result import Trial
    from capbench.engine.trials import Setup, TrialGroup, TrialSpec

Distribution = Callable[..., None]


@pytest.fixture(scope="session", autouse=True)
def shared_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Equal programs are compiled once in a test session: all its processes share a compiler that remembers."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None or sys.platform == "win32":
        yield
        return
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-IS", str(Path(__file__).with_name("compiler_cache.py")), str(folder), compiler]
    cached = own / "cached-compiler"
    cached.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    cached.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(cached))
        yield


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
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained: a model holds up to a hundredth as many facts as it has parameters, give or take by seed."""
    from capbench.engine.cost import Cost
    from capbench.executors import backends
    from capbench.executors.local import LocalExecutor

    def run(self: object, groups: Iterable[TrialGroup], on_trials: Any, on_progress: Any) -> Cost:
        cost = Cost()
        for group in groups:
            trials = [_untrained_trial(group.setup, spec) for spec in group.trials]
            on_progress(1, len(trials))
            on_trials(trials)
            cost.lane_steps += sum(trial.steps for trial in trials)
        return cost

    monkeypatch.setattr(backends, "pool_size", lambda *_: 1)
    monkeypatch.setattr(LocalExecutor, "run", run)


def _untrained_trial(setup: Setup, spec: TrialSpec) -> Trial:
    """A trial with an outcome that follows from its load and its key alone."""
    from capbench.documents.result import Trial, TrialStatus
    from capbench.measure.matching import count_parameters

    key, criterion = setup.key(spec), setup.training.criterion
    chance = int(key[:4], 16) / 0x10000
    capacity = max(2.0, count_parameters(setup.task.plugin, setup.architecture.plugin) / 100)
    is_held = spec.load < capacity * (0.75 + chance / 2)
    value = criterion.threshold if is_held else criterion.threshold * (0.9 if criterion.at_least else 1.5)
    return Trial(
        key=key,
        load=spec.load,
        seed=spec.seed,
        learning_rate=spec.learning_rate,
        status=TrialStatus.HELD if is_held else TrialStatus.NOT_HELD,
        steps=25,
        metrics={criterion.metric: value, "bits": float(min(spec.load, capacity))},
    )


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
