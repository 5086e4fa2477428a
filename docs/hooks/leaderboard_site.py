"""An mkdocs hook that puts the leaderboard's site, built from the records, into the documentation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from capbench_leaderboard.build import build_board

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FOLDER = "leaderboard"
_built = tempfile.TemporaryDirectory(prefix="capbench-leaderboard-")
"""Holds the site until mkdocs has copied it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file of the leaderboard's site, under leaderboard/, so that links to them are checked."""
    out = Path(_built.name)
    records = Path(str(config.config_file_path)).parent / "leaderboard" / "records"
    build_board(records, out)
    site = out / "site"
    for path in sorted(each for each in site.rglob("*") if each.is_file()):
        uri = f"{FOLDER}/{path.relative_to(site).as_posix()}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files
