"""TAB completes commands and names, and does so without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from capbench.cli.main import cli
from capbench.registry.registry import HOOKS, load_registry
from capbench.scaffold.scaffold import Scaffold


def completed(*arguments: str) -> list[str]:
    *before, last = arguments
    return [item.value for item in ShellComplete(cli, {}, "capbench", "_X").get_completions(before, last)]


@pytest.mark.parametrize(
    ("arguments", "hook"),
    [
        (("run", "--task", ""), "capbench_tasks"),
        (("run", "--arch", ""), "capbench_architectures"),
        (("run", "--solver", ""), "capbench_solvers"),
        (("bounds", "--arch", ""), "capbench_architectures"),
    ],
)
def test_names_read_off_the_source_are_those_that_the_registry_finds(arguments: tuple[str, ...], hook: str) -> None:
    assert completed(*arguments) == sorted(load_registry().of_hook(hook))


def test_describe_completes_plugins_of_every_kind() -> None:
    registry = load_registry()
    assert completed("describe", "") == sorted({name for hook in HOOKS for name in registry.of_hook(hook)})


def test_names_of_files_given_before_or_after_the_command_are_completed_too(tmp_path: Path) -> None:
    path = tmp_path / "tab_file.py"
    path.write_text(Scaffold.named("tab-file", "architecture").files()["tab_file.py"])
    assert "tab_file" in completed("--plugin", str(path), "run", "--arch", "tab")
    assert "tab_file" in completed("run", "--plugin", str(path), "--arch", "tab")
    assert "tab_file" not in completed("--plugin", str(path), "run", "--task", "tab")


def test_commands_complete_by_name_with_those_of_other_distributions() -> None:
    assert completed("ch") == ["check"]
    assert "leaderboard" in completed("lead")
    assert "--plugin-trace" in completed("--plu")


def test_a_source_that_cannot_be_read_offers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text("def (")
    assert completed("--plugin", str(path), "run", "--task", "zzz") == []


def test_the_shell_asks_without_importing_torch() -> None:
    code = (
        "import sys; from capbench.cli.main import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    environment = {
        **os.environ,
        "_CAPBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": "capbench run --task r",
        "COMP_CWORD": "3",
    }
    program = "import sys; sys.argv = ['capbench']; " + code
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,recall\nplain,rgr\n"
    assert done.stderr == "False\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(capbench, shell: str) -> None:
    done = capbench("completion", shell)
    assert done.code == 0
    assert "_CAPBENCH_COMPLETE" in done.out
