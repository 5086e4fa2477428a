"""Hostile strings, and what must be true of a terminal's text, a Markdown table and a page that show them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

HOSTILE: tuple[str, ...] = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- --><iframe src=javascript:alert(1)>",
    "javascript:alert(1)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "{{ 7 * 7 }}{% raw %}",
    "${7*7} `id` $(id)",
    "[click](javascript:alert(1))",
    "![x](http://example.invalid/x.png)",
    "<http://example.invalid>",
    "| a | b |\n|---|---|\n# heading",
    "```\nend of code\n```",
    "\\| \\` \\[",
    '=HYPERLINK("http://example.invalid","x")',
    "+1+cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "-2+3",
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://example.invalid\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m",
    "\x07\x08\x00",
    "over\rwritten",
    "\u202egnp.exe\u202c",
    "\u2066isolated\u2069",
    "\u2028line\u2029paragraph",
    "\ufeffmark\u200bspace",
    "line\nbreak\ttab",
    "a" * 5000,
    "Ω≈ç√∫˜µ≤≥÷ 田中さん 🧪 ‎",
    "Z̸͓̈́a̴̖͝l̵̦̇g̶͉̕o̷͙͝",
    "../../etc/passwd",
    "..\\..\\windows\\system32",
    "C:\\x",
    "file:///etc/passwd",
    "'; DROP TABLE trials; --",
    "%s%n%x {0} {name!r}",
    "[bold red]markup[/]",
    "NaN",
    "null",
    "",
    " ",
)
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey instead of showing."""


def terminal_faults(text: str) -> list[str]:
    """Characters that a terminal would obey."""
    return [f"U+{ord(character):04X}" for character in OBEYED.findall(text)]


def csv_faults(cells: list[str]) -> list[str]:
    """Cells that a spreadsheet would run."""
    return [cell for cell in cells if cell.lstrip(" ").startswith(("=", "+", "@", "\t", "\r")) or _is_formula(cell)]


def _is_formula(cell: str) -> bool:
    return cell.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?(e-?\d+)?", cell)


def markdown_faults(text: str) -> list[str]:
    """Raw tags, and links or pictures with an address that a document, and not its template, chose."""
    tags = re.findall(r"(?<!\\)<(?:script|img|svg|iframe)\b[^>]*>", text)
    links = re.findall(r"(?<!\\)\]\((?:javascript:|http://example\.invalid)[^)]*\)", text)
    return [*tags, *links]


class _Page(HTMLParser):
    """Collects what a browser would run: handlers, script addresses, and tags that no template of ours has."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_script = self.in_script or tag == "script"
        for name, value in attrs:
            if name.startswith("on") or (value or "").strip().lower().startswith("javascript:"):
                self.faults.append(f"<{tag} {name}={value}>")
            if (value or "").startswith("http://example.invalid"):
                self.faults.append(f"<{tag} {name}={value}>")

    def handle_endtag(self, tag: str) -> None:
        self.in_script = self.in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.in_script and data.strip() == "alert(1)":
            self.faults.append("a script of the document's own")


def page_faults(html: str) -> list[str]:
    """What a page would run or fetch that comes from a document and not from its template."""
    page = _Page()
    page.feed(html)
    page.close()
    return page.faults
