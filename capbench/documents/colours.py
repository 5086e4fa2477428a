"""Colours of charts: an architecture has the same one on every chart, whichever others are drawn beside it."""

from __future__ import annotations

import hashlib

PALETTE = (
    "#b43368", "#e05976", "#ba3441", "#e25d4b", "#b63e03", "#dc6702", "#9d580c", "#c17d13", "#8b640f",
    "#ac8909", "#7b6c01", "#949404", "#637502", "#6aa10d", "#258101", "#1ba951", "#118054", "#10a682",
    "#067d6e", "#0aa39c", "#017b80", "#0b9fb2", "#077892", "#139bcb", "#0573aa", "#2191f0", "#2966cc",
    "#6684f4", "#5c5aca", "#8e77ec", "#7d4dbe", "#ad6bda", "#9543a7", "#c562be", "#a8398a", "#d65b9c",
)  # fmt: skip
"""Eighteen hues, 20 degrees apart in OKLCH, each dark and light: at least 3:1 against white and the dark page."""
SALT = b"1089889"
"""Found by trial: names of the architectures that are measured most get colours that are far apart."""
UNSETTLED_COLOUR = "#8b939e"
"""Grey, which no architecture has: what is not settled is not ranked."""


def architecture_colour(name: str) -> str:
    """The colour of an architecture, from its name alone, so that adding another never changes it."""
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=4, salt=SALT).digest()
    return PALETTE[int.from_bytes(digest, "big") % len(PALETTE)]
