"""New plugins from the scaffold are complete and pass the conformance kit; harmful names are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from capbench.scaffold.scaffold import FILES, FIRST_RUN, Scaffold

KINDS = tuple(FIRST_RUN)


@pytest.fixture
def installed(tmp_path: Path, distribution, capbench):
    """Writes a plugin with `new-plugin` and makes it visible as an installed distribution."""

    def make(kind: str, prefix: str = "fresh") -> str:
        name = f"{prefix}-{kind}"
        done = capbench("new-plugin", name, "--kind", kind, "--dir", str(tmp_path))
        assert done.code == 0, done.err
        folder = tmp_path / name
        points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]["capbench"]
        lines = "\n".join(f"{key} = {value}" for key, value in points.items())
        module = f"{prefix}_{kind}"
        distribution(name, (folder / f"{module}.py").read_text(), f"[capbench]\n{lines}\n", version="0.1.0")
        return module

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_is_listed_and_passes_check_unchanged(kind: str, installed, capbench) -> None:
    module = installed(kind)
    assert f"fresh-{kind} 0.1.0" in capbench("list").out
    done = capbench("check", module, "--no-compile")
    assert done.code == 0, done.out
    assert f"{kind} {module}, version 1" in done.out
    assert f'passed  entry_point                    {module} = "{module}"' in done.out


def test_a_new_architecture_is_compared_at_equal_parameters(installed, capbench, untrained) -> None:
    module = installed("architecture", "sized")
    done = capbench("compare", "mha", module, "--task", "rgr", "--preset", "smoke", "--params", "1k", "--json")
    assert done.code == 0, done.err
    assert all(950 <= cell["n_parameters"] <= 1050 for cell in json.loads(done.out)["cells"])


@pytest.mark.slow
def test_a_new_plugin_compiles(installed, capbench) -> None:
    module = installed("architecture", "compiled")
    done = capbench("check", module)
    assert done.code == 0, done.out
    assert "compiles" in done.out


@pytest.mark.parametrize("kind", ["task", "solver", "bound"])
def test_the_first_suggested_command_works(kind: str, tmp_path: Path, capbench) -> None:
    printed = capbench("new-plugin", f"first-{kind}", "--kind", kind, "--dir", str(tmp_path)).out
    arguments = next(line for line in printed.splitlines() if "--plugin" in line).partition("#")[0].split()[1:]
    path = str(tmp_path / f"first-{kind}" / arguments[1])
    quick = [] if kind == "bound" else ["--at", "4", "--seeds", "1", "--steps", "30"]
    done = capbench("--plugin", path, *arguments[2:], *quick)
    assert done.code == 0, done.err
    assert f"first_{kind}" in done.out + done.err


@pytest.mark.slow
def test_the_tests_of_new_plugins_pass(tmp_path: Path) -> None:
    folders = [Scaffold.named(f"own-{kind}", kind).write(tmp_path) for kind in KINDS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *map(str, folders)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


@pytest.mark.slow
def test_pip_installs_a_new_plugin_and_capbench_finds_it(tmp_path: Path) -> None:
    folder = Scaffold.named("own-bound", "bound").write(tmp_path)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(folder)], check=True, capture_output=True)
    assert sorted(path.name for path in site.glob("own_bound*")) == ["own_bound-0.1.0.dist-info", "own_bound.py"]
    done = subprocess.run(
        [sys.executable, "-m", "capbench.cli", "list"],
        env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "own-bound 0.1.0" in done.stdout, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_written_files_are_complete_short_and_lint_clean(kind: str, tmp_path: Path) -> None:
    folder = Scaffold.named("own-thing", kind).write(tmp_path)
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {path.format(module="own_thing") for path in FILES}
    assert len((folder / "own_thing.py").read_text().splitlines()) <= 65
    assert not any(
        "{{" in path.read_text() or "{%" in path.read_text() for path in folder.rglob("*.*") if path.is_file()
    )
    ruff = shutil.which("ruff") or str(Path(sys.executable).with_name("ruff"))
    if Path(ruff).exists():
        for command in (["check"], ["format", "--check"]):
            subprocess.run([ruff, *command, "--isolated", "--no-cache", "--line-length", "120"], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("9lives", "lower-case words"),
        ("My-Attention", "lower-case words"),
        ("../escape", "lower-case words"),
        ("a b", "lower-case words"),
        ("", "lower-case words"),
        ("my--attention", "lower-case words"),
        ("x" * 41, "at most 40"),
        ("class", "a Python keyword"),
        ("json", "the standard library's module 'json'"),
        ("capbench-extra", "reserved for capbench"),
        ("test-thing", "for tests"),
        ("torch", "the installed module 'torch'"),
        ("mha", "the name 'mha' is taken by capbench"),
    ],
)
def test_a_bad_or_taken_name_is_refused_in_one_line(tmp_path: Path, capbench, name: str, reason: str) -> None:
    done = capbench("new-plugin", "--dir", str(tmp_path), "--", name)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.py"))


def test_an_existing_folder_is_left_alone(tmp_path: Path, capbench) -> None:
    (tmp_path / "own-thing").mkdir()
    done = capbench("new-plugin", "own-thing", "--dir", str(tmp_path))
    assert done.code == 2
    assert "exists already" in done.err
    assert not list((tmp_path / "own-thing").iterdir())


def test_a_folder_that_cannot_be_written_exits_with_code_2(tmp_path: Path, capbench) -> None:
    (tmp_path / "file").write_text("")
    assert capbench("new-plugin", "own-thing", "--dir", str(tmp_path / "file")).code == 2
