"""A result document as an older capbench stored it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

STORE = Path(__file__).parents[1] / "fixtures" / "store-v1.sqlite"


@pytest.fixture(scope="package")
def document() -> str:
    with sqlite3.connect(f"{STORE.as_uri()}?mode=ro&immutable=1", uri=True) as db:
        return db.execute("SELECT document FROM runs").fetchone()[0]
