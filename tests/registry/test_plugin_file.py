"""A plugin that is a single file: used without packaging, named in the result, and fatal when broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from capbench.scaffold.scaffold import Scaffold

SOURCE = Scaffold.named("lone-file", "architecture").files()["lone_file.py"]
RUN = ("run", "--task", "rgr", "--arch", "lone_file", "--preset", "smoke", "--at", "8", "--seeds", "1", "--lr", "0.1")


@pytest.fixture(autouse=True)
def forget_files() -> Iterator[None]:
    """The tests' files have the same names in other folders."""
    yield
    for name in ("lone_file", "second_file", "broken_file"):
        sys.modules.pop(name, None)


@pytest.fixture
def lone_file(tmp_path: Path) -> Path:
    path = tmp_path / "lone_file.py"
    path.write_text(SOURCE)
    return path


def test_a_file_is_listed_and_runs_without_being_installed(lone_file: Path, capbench) -> None:
    assert "lone_file.py sha256:" in capbench("--plugin", str(lone_file), "list").out
    done = capbench("--plugin", str(lone_file), *RUN, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["architecture"]["plugin"].startswith("lone_file.py sha256:")
    assert document["command"].startswith("capbench --plugin lone_file.py run --task rgr --arch lone_file ")
    assert str(lone_file.parent) not in done.out, "results are published: no folder of this machine"


def test_a_changed_file_is_trained_anew_and_an_unchanged_one_is_not(lone_file: Path, capbench) -> None:
    def n_trained() -> int:
        document = json.loads(capbench("--plugin", str(lone_file), *RUN, "--json").out)
        return int(document["timing"]["trials_trained"])

    assert n_trained() > 0
    assert n_trained() == 0
    lone_file.write_text(SOURCE.replace("torch.ones(())", "torch.full((), 0.5)"))
    assert n_trained() > 0


def test_without_the_option_the_file_is_unknown(lone_file: Path, capbench) -> None:
    done = capbench(*RUN)
    assert done.code == 2
    assert "no architecture named 'lone_file'" in done.err


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("broken_file.py", "1 / 0", "ZeroDivisionError"),
        ("broken_file.py", "x = 1", "none of the hooks"),
        ("broken_file.py", "def (", "SyntaxError"),
        ("broken_file.py", "import sys; sys.exit(0)", "SystemExit"),
        ("broken_file.py", SOURCE.replace('"lone_file"', '"mha"'), "is provided by capbench already"),
        ("json.py", SOURCE, "would hide the module 'json'"),
        ("not a module.py", SOURCE, "named like a Python module"),
        ("plugin.txt", SOURCE, "named like a Python module"),
    ],
)
def test_a_broken_file_is_fatal_and_says_why_in_one_line(
    tmp_path: Path, capbench, name: str, source: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(source)
    done = capbench("--plugin", str(path), "list")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1, done.err


def test_a_file_that_is_not_there_is_a_mistake_of_the_user(capbench) -> None:
    assert capbench("--plugin", "nowhere.py", "list").code == 2


def test_the_trace_shows_each_call_with_its_provider_what_it_returned_and_the_time(lone_file: Path, capbench) -> None:
    done = capbench("--plugin-trace", "--plugin", str(lone_file), "list", "--json")
    json.loads(done.out)
    lines = done.err.splitlines()
    hooks = [line for line in lines if line.startswith("trace: capbench_architectures [lone_file.py sha256:")]
    assert len(hooks) == 1
    assert "entry point lone_file] -> LoneFile (" in hooks[0]
    assert hooks[0].endswith(" ms)")
    assert any(line.startswith("trace: import capbench_tasks.rgr [capbench ") for line in lines)
    assert any("capbench_bounds" in line and "-> CapacityLaw, CountingFloor (" in line for line in lines)


def test_the_trace_shows_a_call_that_raises(distribution, capbench) -> None:
    distribution(
        "raiser", "from capbench import hookimpl\n@hookimpl\ndef capbench_tasks():\n    raise OSError('no disk')"
    )
    assert "trace: capbench_tasks [raiser 1.2, entry point raiser] -> OSError: no disk" in capbench(
        "--plugin-trace", "plugins"
    ).err  # fmt: skip


def test_two_files_can_be_used_at_once(lone_file: Path, capbench) -> None:
    other = lone_file.with_name("second_file.py")
    other.write_text(SOURCE.replace("lone_file", "second_file"))
    listed = capbench("--plugin", str(lone_file), "--plugin", str(other), "list").out
    assert "lone_file.py" in listed
    assert "second_file.py" in listed
