"""What a pull request to a results repository may change: read from git's objects, before anything is checked out."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from capbench.documents.strict_json import MAX_BYTES
from capbench.errors import BadSetting
from capbench.studies.records import MISSING, REMOVED, VERIFIED

MOST_RECORDS = 20
"""Records in one pull request: each is verified, which takes minutes."""
MOST_DEPTH = 5
MOST_NAME = 120
GIT_SECONDS = 300.0
FILE_MODE = "100644"
KINDS = {"120000": "a symbolic link", "160000": "a submodule", "100755": "an executable file"}
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
RESERVED = {"con", "prn", "aux", "nul", *(f"{device}{n}" for device in ("com", "lpt") for n in range(10))}
"""Names that Windows does not allow, with any ending."""
MAINTAINED = {VERIFIED, REMOVED}


@dataclass(frozen=True)
class Change:
    """A file that a pull request changes, as `git diff --raw` has it."""

    mode: str
    blob: str
    status: str
    path: str


def check_pull_request(repository: Path, base: str, head: str, folder: str) -> tuple[list[Change], list[str]]:
    """The changed records, and why the pull request is refused: nothing where it is not."""
    commits = [_commit(repository, revision) for revision in (base, head)]
    changes = list(
        _changes(_git(repository, "diff", "--raw", "-z", "--no-renames", "--no-abbrev", "...".join(commits)))
    )
    if len(changes) > 2 * MOST_RECORDS:
        return [], [f"a pull request changes at most {MOST_RECORDS} records, this one changes {len(changes):,} files"]
    there = _git(repository, "ls-tree", "-r", "-z", "--name-only", commits[0]).decode(errors="replace").split("\0")
    found = [line for change in changes for line in _refusals(repository, change, folder)]
    found += _collisions([change.path for change in changes if change.status != "D"], [path for path in there if path])
    records = [change for change in changes if change.status != "D"]
    if sum(PurePosixPath(change.path).name != MISSING for change in records) > MOST_RECORDS:
        found.append(f"a pull request changes at most {MOST_RECORDS} records, got {len(records)}; split it")
    return records, found


def write_records(repository: Path, records: Iterable[Change]) -> list[Path]:
    """Writes checked records at their paths in the repository's folder; returns those that are to be verified."""
    written = []
    for record in records:
        path = repository / record.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_git(repository, "cat-file", "blob", record.blob))
        if path.name != MISSING:
            written.append(path)
    return written


def _refusals(repository: Path, change: Change, folder: str) -> Iterator[str]:
    """Why this change is refused."""
    path, shown = PurePosixPath(change.path), repr(change.path[:200])
    if not change.path.startswith(f"{folder}/") or path.suffix != ".json":
        yield f"{shown}: a pull request changes .json files under {folder}/ only"
        return
    inner = change.path.removeprefix(f"{folder}/").split("/")
    if inner[-1].casefold() in MAINTAINED:
        yield f"{shown}: it is kept by the maintainers"
    elif change.status == "D" and path.name != MISSING:
        yield f"{shown}: records are removed by the maintainers (capbench leaderboard remove)"
    elif change.status not in "AMD" or (change.status != "D" and change.mode != FILE_MODE):
        yield f"{shown}: a record is a plain file, got {KINDS.get(change.mode, f'mode {change.mode}')}"
    elif len(inner) > MOST_DEPTH or not all(map(is_portable, inner)):
        yield (
            f"{shown}: names have lower-case letters, digits, dots, hyphens and underscores, are not reserved "
            f"by any system, and stand at most {MOST_DEPTH} deep; take the one that `capbench leaderboard submit` says"
        )
    elif change.status != "D" and int(_git(repository, "cat-file", "-s", change.blob)) > MAX_BYTES:
        yield f"{shown}: a record has at most {MAX_BYTES // 2**20} MiB"


def is_portable(name: str) -> bool:
    """Whether a file can have this name on every system, and no other file one that differs only in case."""
    is_allowed = NAME.fullmatch(name) and not name.endswith(".") and len(name) <= MOST_NAME
    return bool(is_allowed) and name.split(".")[0] not in RESERVED


def _collisions(changed: Collection[str], there: Collection[str]) -> Iterator[str]:
    """Files or folders that differ from others only in case: some systems take them for the same."""
    spelled: dict[str, str] = {}
    for path in (*there, *changed):
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            other = spelled.setdefault(name.casefold(), name)
            if other != name and path in changed:
                yield f"{path[:200]!r}: {other[:200]!r} differs from it in case only"


def _changes(raw: bytes) -> Iterator[Change]:
    """Reads `git diff --raw -z`: a line of modes, ids and status, then the path."""
    parts = iter(raw.decode(errors="surrogateescape").split("\0"))
    for line in parts:
        if line:
            _, mode, _, blob, status = line.split(" ")
            yield Change(mode, blob, status[:1], next(parts))


def _commit(repository: Path, revision: str) -> str:
    """The commit of a revision, as its id: a revision is never read as an option."""
    return _git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()


def _git(repository: Path, *words: str) -> bytes:
    command = ["git", "-C", str(repository), *words]
    try:
        said: bytes = subprocess.run(command, capture_output=True, check=True, timeout=GIT_SECONDS).stdout
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise BadSetting(f"check needs a git repository with both commits: {lines[-1]}; fetch them first") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadSetting(f"git could not be run: {error}; install it, or check the repository") from error
    return said
