"""Slugs: short file names for pages, safe in any file system and URL."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNSAFE_CHARACTERS = re.compile(r"[^a-z0-9._-]+")
MAX_SLUG_LENGTH = 80


def slug(text: str) -> str:
    """A text as a file name: lower case, without characters that are special in a path or a URL."""
    return UNSAFE_CHARACTERS.sub("-", text.lower()).strip("-.")[:MAX_SLUG_LENGTH] or "unnamed"


def unique_slugs(names: Iterable[str]) -> dict[str, str]:
    """A different slug for each name; of names with the same slug, all but the first in sorted order get a number."""
    slugs: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(set(names)):
        base, n = slug(name), 1
        unique = base
        while unique in taken:
            n += 1
            unique = f"{base}-{n}"
        taken.add(unique)
        slugs[name] = unique
    return slugs
