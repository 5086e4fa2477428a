"""Adds the pages that commands write to the navigation, those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

HEADING = "What was found"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page under docs/ that the navigation does not name goes into a section of its own."""
    docs = Path(config.docs_dir)
    named = set(_named(config.nav))
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    left = [page for page in pages if page not in named and not page.startswith("example-plugin/")]
    if left and config.nav is not None:
        config.nav = [*config.nav, {HEADING: left}]
    return config


def _named(nav: object) -> list[str]:
    """The pages that a navigation names, at any depth."""
    if isinstance(nav, str):
        return [nav]
    inner = nav if isinstance(nav, list) else list(nav.values()) if isinstance(nav, dict) else []
    return [page for each in inner for page in _named(each)]
