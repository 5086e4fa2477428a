"""Addresses within the site: short, safe in any file system, and one for each thing."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNSAFE = re.compile(r"[^a-z0-9._-]+")
LONGEST = 80


def slug(text: str) -> str:
    """A text as a file name: lower case, nothing that a path or a URL would obey."""
    return UNSAFE.sub("-", text.lower()).strip("-.")[:LONGEST] or "unnamed"


def addresses(names: Iterable[str]) -> dict[str, str]:
    """A different slug for each name; where two would be the same, the later in order gets a number."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(set(names)):
        base, n = slug(name), 1
        address = base
        while address in taken:
            n += 1
            address = f"{base}-{n}"
        taken.add(address)
        found[name] = address
    return found
