"""Atomic file writes."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from capbench.errors import BadSetting


def write_whole(path: Path, content: str | bytes, remedy: str = "name another folder with --out") -> None:
    """Writes a file atomically, creating its folder; text as UTF-8. Raises BadSetting with the remedy."""
    # A name of its own for each writer: several processes may write the same file.
    part = path.parent / f".{uuid4().hex}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error
