"""Salvage: finds the rows of a damaged store in the bytes of its files, whatever SQLite can still make of them.

A row is found by the start of its document, not by the pages and trees that lead to it: those may be lost.
The format of records and cells is that of https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capbench.store.rows import Value

PAGE_SIZE = 4096
"""SQLite's default, with which every store is made."""
WAL_HEADER, WAL_FRAME_HEADER = 32, 24
DOCUMENT = re.compile(rb'\{(?:"key":"|"schema_version":1,"run_id":")([^"\\]{1,200})"')
"""The start of a stored trial or run, with its key."""
MAX_HEADER = 40
"""Bytes of a record's header, of which each column takes one to nine."""
WIDTHS = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}
"""Bytes of the values whose type is no text or blob."""


@dataclass(frozen=True)
class Pages:
    """The pages of a database file, by number, and those of the log beside it."""

    main: bytes
    log: bytes

    def page(self, number: int) -> bytes:
        """A page of the database file; empty beyond its end."""
        return self.main[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.main), PAGE_SIZE):
            yield self.main[start : start + PAGE_SIZE]
        for start in range(WAL_HEADER + WAL_FRAME_HEADER, len(self.log), WAL_FRAME_HEADER + PAGE_SIZE):
            yield self.log[start : start + PAGE_SIZE]


def read_pages(path: Path) -> Pages:
    """The pages of a database file and of its write-ahead log."""
    log = Path(f"{path}-wal")
    return Pages(path.read_bytes(), log.read_bytes() if log.exists() else b"")


def find_rows(pages: Pages) -> Iterator[tuple[Value, ...]]:
    """Every row with a document that stands in the files; whether it is unchanged is for the caller to check."""
    for page in pages:
        for match in DOCUMENT.finditer(page):
            yield from _rows_before(pages, page, match.start(), match[1])


def _rows_before(pages: Pages, page: bytes, document: int, key: bytes) -> Iterator[tuple[Value, ...]]:
    """The row whose first column is the key and whose document begins at this place of a page."""
    start = page.rfind(key, 0, document)
    while start >= 0:
        for header in range(max(0, start - MAX_HEADER), start - 2):
            if page[header] == start - header:
                row = _row_at(pages, page, header, document)
                if row is not None:
                    yield row
                    return
        start = page.rfind(key, 0, start)


def _row_at(pages: Pages, page: bytes, header: int, document: int) -> tuple[Value, ...] | None:
    """The row whose record's header begins here, if one of its columns begins where the document does."""
    types, end = _types(page, header)
    if not types or end - header != page[header]:
        return None
    widths = [_width(kind) for kind in types]
    starts = [end - header + sum(widths[:i]) for i in range(len(widths))]
    if document - header not in starts:
        return None
    content = _payload(pages, page, header, page[header] + sum(widths))
    if content is None:
        return None
    values = [_value(kind, content[at : at + width]) for kind, at, width in zip(types, starts, widths, strict=True)]
    return tuple(values)


def _types(page: bytes, header: int) -> tuple[list[int], int]:
    """The types of a record's columns, and where its content begins; none where they do not fit into the page."""
    types: list[int] = []
    at, end = header + 1, header + page[header]
    while at < end:
        kind, at = _varint(page, at)
        if kind in (10, 11):  # kept for SQLite's own use
            return [], end
        types.append(kind)
    return types, at


def _payload(pages: Pages, page: bytes, start: int, size: int) -> bytes | None:
    """A record's bytes: those on its page, then those on the pages of its chain; None where they are not there."""
    if size <= PAGE_SIZE - 35:
        return page[start : start + size] if start + size <= len(page) else None
    least = (PAGE_SIZE - 12) * 32 // 255 - 23
    local = least + (size - least) % (PAGE_SIZE - 4)
    local = local if local <= PAGE_SIZE - 35 else least
    content, following = page[start : start + local], page[start + local : start + local + 4]
    while len(content) < size:
        more = pages.page(int.from_bytes(following, "big")) if any(following) else b""
        if not more:
            return None
        content, following = content + more[4:], more[:4]
    return content[:size]


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """A variable-length number, and where the next byte is."""
    value = 0
    for place, byte in enumerate(page[at : at + 9]):
        if place == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return 10, len(page)


def _width(kind: int) -> int:
    return WIDTHS[kind] if kind in WIDTHS else (kind - 12) // 2


def _value(kind: int, content: bytes) -> Value:
    if kind in (8, 9):
        return kind - 8
    if 1 <= kind <= 6:
        return int.from_bytes(content, "big", signed=True)
    if kind >= 13 and kind % 2:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            return content
    return None if kind == 0 else content
