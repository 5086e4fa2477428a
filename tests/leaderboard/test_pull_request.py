"""A pull request to a results repository adds records at portable names, and changes nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from capbench_leaderboard import pull_request
from capbench_leaderboard.pull_request import check_pull_request, is_portable

WORKFLOW = Path(__file__).parents[2] / "docs" / "results-repository" / ".github" / "workflows" / "leaderboard.yml"
OLD = "records/standard/rgr/mha-1000-aa.json"
NEW = "records/standard/rgr/mha-2000-bb.json"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    for path in (OLD, "records/verified.json", ".github/workflows/leaderboard.yml", "README.md"):
        put(tmp_path, path)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "base")
    git(tmp_path, "checkout", "-qb", "submission")
    return tmp_path


def git(repository: Path, *words: str, data: bytes | None = None) -> str:
    identity = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, check=True, capture_output=True, env=environment, input=data).stdout.decode().strip()


def put(repository: Path, path: str, content: str = "{}") -> None:
    (repository / path).parent.mkdir(parents=True, exist_ok=True)
    (repository / path).write_text(content)


def entry(repository: Path, path: str, mode: str = "100644", content: bytes = b"{}") -> None:
    """Commits a file as a forger can: without a file system that would refuse its name."""
    blob = git(repository, "hash-object", "-w", "--stdin", data=content)
    git(repository, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}")
    git(repository, "commit", "-qm", "change")


def refusals(repository: Path) -> list[str]:
    return check_pull_request(repository, "main", "submission", "records")[1]


def test_added_and_changed_records_are_written_and_named(repository: Path, capbench, monkeypatch) -> None:
    entry(repository, NEW, content=b'{"a": 1}')
    entry(repository, OLD, content=b'{"b": 2}')
    entry(repository, "records/standard/missing.json")
    git(repository, "checkout", "-qf", "main")
    monkeypatch.chdir(repository)
    done = capbench("leaderboard", "check", "main", "submission", "--write")
    assert (done.code, done.out.split()) == (0, [OLD, NEW]), done.err
    assert (repository / NEW).read_text() == '{"a": 1}'
    assert (repository / OLD).read_text() == '{"b": 2}'


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/leaderboard.yml", "README.md", "records.json", "recordsx/a.json", "records/run.sh",
        "records/verified.json", "records/Verified.json", "records/removed.json", "records/standard/verified.json",
        "Records/standard/rgr/mha-1.json", "records/standard/RGR/mha-1.json", "records/standard/con/mha-1.json",
        "records/standard/rgr/nul.json", "records/standard/rgr/com1.x.json", "records/standard/rgr/lpt9.json",
        "records/standard/rgr/.json", "records/standard/.hidden/mha.json", "records/standard/rgr./mha.json",
        "records/standard/rgr/mha .json", "records/standard/rgr/-rf.json", "records/a/b/c/d/e/f.json",
        "records/standard/rgr/mh\u0430.json", "records/standard/rgr/a\nb.json", f"records/{'a' * 200}.json",
    ],
)  # fmt: skip
def test_other_files_and_names_that_some_system_cannot_hold_are_refused(repository: Path, path: str) -> None:
    entry(repository, path, content=b"{ }")
    assert len(refusals(repository)) >= 1


@pytest.mark.parametrize("mode", ["120000", "100755"])
def test_links_and_executables_are_refused(repository: Path, mode: str) -> None:
    entry(repository, NEW, mode, b"../../../etc/passwd")
    (line,) = refusals(repository)
    assert "a record is a plain file" in line


def test_submodules_and_removed_records_are_refused(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{commit},{NEW}")
    git(repository, "rm", "-q", "--cached", OLD)
    git(repository, "commit", "-qm", "change")
    assert len(refusals(repository)) == 2


def test_a_path_with_two_dots_is_refused_wherever_it_comes_from() -> None:
    names = ("..", ".", "", "...", "a.", "a b", "a/b")
    assert not any(map(is_portable, names))
    change = pull_request.Change("100644", "0" * 40, "A", "records/../.github/workflows/x.json")
    assert list(pull_request._refusals(Path(), change, "records"))


def test_names_that_differ_in_case_from_those_of_the_base_are_refused() -> None:
    lines = list(pull_request._collisions(["records/a/x.json"], ["records/A/y.json", "README.md"]))
    assert lines == ["'records/a/x.json': 'records/A' differs from it in case only"]
    assert not list(pull_request._collisions(["records/a/x.json"], ["records/a/y.json"]))


def test_too_many_and_too_large_records_are_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, words in (("MOST_RECORDS", 0, "at most 0 records"), ("MAX_BYTES", 1, "a record has at most")):
        if name == "MOST_RECORDS":
            entry(repository, NEW)
        with monkeypatch.context() as patch:
            patch.setattr(pull_request, name, value)
            assert any(words in line for line in refusals(repository)), name
    assert refusals(repository) == []


def test_a_revision_that_looks_like_an_option_is_no_option(repository: Path, capbench, monkeypatch) -> None:
    monkeypatch.chdir(repository)
    done = capbench("leaderboard", "check", "--", "--output=README.md", "submission")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_nothing_is_written_for_a_refused_pull_request(repository: Path, capbench, monkeypatch) -> None:
    entry(repository, NEW)
    entry(repository, "README.md", content=b"changed")
    git(repository, "checkout", "-qf", "main")
    monkeypatch.chdir(repository)
    assert capbench("leaderboard", "check", "main", "submission", "--write").code == 1
    assert not (repository / NEW).exists()


def test_the_workflow_is_that_of_the_base_with_read_rights_and_no_file_of_the_pull_request() -> None:
    workflow = yaml.load(WORKFLOW.read_text(), yaml.BaseLoader)
    assert set(workflow["on"]) == {"pull_request_target", "push", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    job = workflow["jobs"]["verify"]
    assert "permissions" not in job
    assert int(job["timeout-minutes"]) <= 60
    (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
    assert "ref" not in checkout["with"], "the base, not the pull request"
    assert checkout["with"]["persist-credentials"] == "false"
    text = WORKFLOW.read_text()
    assert "{{ secrets" not in text
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    assert not any("${{" in script for script in scripts), "names from a pull request never become part of a script"
    at = [n for n, script in enumerate(scripts) if "leaderboard check" in script]
    assert at
    assert at[0] < min(n for n, script in enumerate(scripts) if "leaderboard verify" in script)
    assert not any(words in script for script in scripts for words in ("git checkout", "git merge", "git switch"))
