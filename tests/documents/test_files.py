"""A file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from capbench.documents.files import write_whole
from capbench.errors import BadSetting


def test_text_and_bytes_are_written_and_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.txt"
    write_whole(path, "naïve\n")
    assert path.read_bytes() == "naïve\n".encode()
    write_whole(path, b"again")
    assert path.read_bytes() == b"again"
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    write_whole(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(BadSetting, match=r"x\.txt cannot be written: No space left on device; name another file"):
        write_whole(path, "new", remedy="name another file")
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "old")
