"""An mkdocs hook that adds the pages written by commands to the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

HEADING = "Results"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds a section with every page under docs/ that the navigation does not name."""
    docs = Path(config.docs_dir)
    named = set(_pages_named(config.nav))
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    written = [page for page in pages if page not in named and not page.startswith("example-plugin/")]
    if written and config.nav is not None:
        config.nav = [*config.nav, {HEADING: [{_title(docs / page): page} for page in written]}]
    return config


def _title(path: Path) -> str:
    """The first heading of a page, or its name in words."""
    lines = path.read_text(encoding="utf-8").splitlines()
    headings = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    return headings[0] if headings else path.stem.replace("-", " ").capitalize()


def _pages_named(nav: object) -> list[str]:
    """The pages that a navigation names, at any depth."""
    if isinstance(nav, str):
        return [nav]
    inner = nav if isinstance(nav, list) else list(nav.values()) if isinstance(nav, dict) else []
    return [page for each in inner for page in _pages_named(each)]
