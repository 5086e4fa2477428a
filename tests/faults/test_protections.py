"""Each protection is held by a test: without the protection, that test fails.

In the full form every mutation below is applied to a copy of the sources and its test is run there; it must pass in
the copy as it is, and fail after the mutation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.conftest import IS_FULL

ROOT = Path(__file__).parents[2]
SOURCES = ("capbench", "plugins", "tasks", "leaderboard", "tests")
VERIFY = "capbench/studies/verify"
TESTS_FAILED = 1
"""Exit code of pytest; others say that tests could not be collected or run, which proves nothing."""


@dataclass(frozen=True)
class Mutation:
    """A change of one place of a source file that takes a protection away, and the test that must notice."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = (
    Mutation(
        "limits of verify lifted",
        f"{VERIFY}/limits.py",
        "if stated > most:",
        "if stated > 10**9 * most:",
        "tests/studies/verify/test_limits.py::test_more_trials_than_the_limit_are_refused",
    ),
    Mutation(
        "checksums of stored rows ignored",
        "capbench/store/rows.py",
        "if checksum(*values) != stated:",
        "if not values:",
        "tests/store/test_store.py::test_a_row_that_is_not_as_it_was_written_is_damage_too",
    ),
    Mutation(
        "no escape in Markdown",
        "leaderboard/capbench_leaderboard/readme.py",
        'line = SPECIAL.sub(r"\\\\\\1", line)',
        "",
        "tests/faults/test_hostile.py::test_a_markdown_table_keeps_every_hostile_string_in_its_cell",
    ),
    Mutation(
        "no escape in the pages of the board",
        "leaderboard/capbench_leaderboard/site/writer.py",
        "autoescape=True",
        "autoescape=False",
        "tests/leaderboard/test_build.py::test_hostile_names_are_harmless_in_page_table_and_terminal",
    ),
    Mutation(
        "control characters shown",
        "capbench/documents/text.py",
        'return CONTROL.sub(lambda match: f"\\\\x{ord(match[0]):02x}", text)',
        "return text",
        "tests/faults/test_hostile.py::test_a_terminal_obeys_nothing_that_a_document_says",
    ),
    Mutation(
        "formulas exported as they are",
        "capbench/store/export.py",
        """return f"'{cell}" if""",
        "return cell if",
        "tests/faults/test_hostile.py::test_a_spreadsheet_runs_nothing_that_a_document_says",
    ),
    Mutation(
        "a sample that can be predicted",
        f"{VERIFY}/verify.py",
        "random.SystemRandom() if seed is None else random.Random(seed)",
        "random.Random(seed or 0)",
        "tests/studies/verify/test_forgery.py::test_the_sample_is_drawn_from_the_randomness_of_the_system",
    ),
    Mutation(
        "metrics that were run again not compared",
        f"{VERIFY}/tolerance.py",
        "return stated.keys() == again.keys() and all(",
        "return stated.keys() == again.keys() or all(",
        "tests/studies/verify/test_verify.py::test_a_changed_metric_is_caught_by_running_the_trial_again",
    ),
    Mutation(
        "code hashes not compared",
        f"{VERIFY}/rebuild.py",
        "if (found.plugin.version, found.code_hash) != (stated.version, stated.code_hash):",
        "if found.plugin.version != stated.version:",
        "tests/studies/verify/test_verify.py::test_a_plugin_with_other_code_cannot_be_run",
    ),
    Mutation(
        "changes of a plugin not undone",
        "capbench/registry/containment.py",
        "setting.restore(before[setting.name])",
        "pass",
        "tests/registry/test_containment.py::test_what_a_plugin_changes_is_undone_and_named_and_the_plugin_stays",
    ),
    Mutation(
        "replaced functions of torch not looked for",
        "capbench/registry/containment.py",
        "changes.functions.extend(_restore_functions(places, functions))",
        "pass",
        "tests/registry/test_containment.py::test_a_plugin_that_patches_torch_is_refused_and_the_patch_undone",
    ),
    Mutation(
        "any name in a pull request",
        "leaderboard/capbench_leaderboard/pull_request.py",
        "return bool(is_allowed) and name.split",
        "return True or name.split",
        "tests/leaderboard/test_pull_request.py::test_a_path_with_two_dots_is_refused_wherever_it_comes_from",
    ),
    Mutation(
        "documents of any depth",
        "capbench/documents/strict_json.py",
        "if depth > MAX_DEPTH:",
        "if depth > 10**9:",
        "tests/documents/test_strict_json.py::test_a_document_made_to_exhaust_its_reader_is_refused",
    ),
    Mutation(
        "leases of dead processes kept",
        "capbench/store/leases.py",
        "or (host == self._host and not _is_alive(pid, started))",
        "",
        "tests/store/test_store.py::test_the_leases_of_a_dead_process_are_free_at_once",
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_place_of_each_protection_and_its_test_are_there(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1
    file, _, name = mutation.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources and tests, in a folder of their own."""
    folder = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "bench"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def noticed() -> list[str]:
    """The mutations that were noticed so far."""
    return []


def run_tests(copy: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Runs tests on the copy, in a process of its own that imports from nowhere else."""
    path = os.pathsep.join(str(copy / name) for name in ("", "plugins", "tasks", "leaderboard"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("CAPBENCH_FAULTS", None)
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:benchmark", "-p", "no:cacheprovider", *tests]
    return subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.skipif(not IS_FULL, reason="takes minutes: make faults")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_without_a_protection_its_test_fails(copy: Path, noticed: list[str], mutation: Mutation, tally) -> None:
    before = run_tests(copy, mutation.test)
    assert before.returncode == 0, before.stdout
    file = copy / mutation.file
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
    after = run_tests(copy, mutation.test)
    file.write_text(source, encoding="utf-8")
    assert after.returncode == TESTS_FAILED, after.stdout
    noticed.append(mutation.name)
    tally.add("protections taken out of a copy of the sources", f"{len(noticed)}, each noticed by a test")
