"""An mkdocs hook that generates the fields of suite and sweep files in files.md from their models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic.fields import FieldInfo

from capbench.measure.options import Option
from capbench.studies.suite import Rule, Suite
from capbench.studies.sweep import SweepFile

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page
    from pydantic import BaseModel

MODELS: dict[str, type[BaseModel]] = {"sweep": SweepFile, "suite": Suite, "rules": Rule}
MARK = re.compile(r"<!-- fields: (\w+) -->")
OWN_WORDS = {
    ("suite", "name"): "letters, digits and dashes; the folder of its records",
    ("suite", "version"): "raised by every change: results of different versions are not compared",
    ("suite", "preset"): "the preset of its runs",
    ("suite", "rules"): "what is different for some pairs; see below",
}
"""What the models do not say about a field."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replaces the marks in a page by tables of fields."""
    return MARK.sub(lambda match: field_table(match[1]), markdown)


def field_table(name: str) -> str:
    """One row per field of a file's model."""
    rows = [f"| `{field}` | {_default(info)} | {_words(name, field, info)} |" for field, info in _fields(name)]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def _fields(name: str) -> list[tuple[str, FieldInfo]]:
    return [*MODELS[name].model_fields.items()]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "must be given"
    return "–" if info.default in (None, (), "") else f"`{str(info.default).lower()}`"


def _words(name: str, field: str, info: FieldInfo) -> str:
    """The description of a field; of an option of `capbench run`, its help."""
    options = [each.help for each in info.metadata if isinstance(each, Option)]
    words = OWN_WORDS.get((name, field)) or (options[0] if options else info.description) or ""
    return words.replace("|", "\\|")
