"""The code hash: follows what the code does, not how it is written."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capbench.registry.provenance import canonical_text, code_hash

SOURCE = '''"""A module."""
from hashed.helper import SCALE

class Thing:
    """A class."""
    size: int = 8
    """An attribute."""

    def area(self, factor=2):
        # a comment
        return self.size * factor + SCALE
'''

Hash = Callable[..., str]


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hash:
    """Writes a package of two modules and hashes its class."""
    package = tmp_path / "hashed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write_and_hash(source: str = SOURCE, helper: str = "SCALE = 1\n") -> str:
        (package / "thing.py").write_text(source)
        (package / "helper.py").write_text(helper)
        for name in [n for n in sys.modules if n.partition(".")[0] == "hashed"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return code_hash(importlib.import_module("hashed.thing").Thing)

    return write_and_hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# another comment"),
        ("        # a comment\n", ""),
        ('"""A class."""', '"""Another docstring."""'),
        ('    """A class."""\n', ""),
        ('"""A module."""', "'''A module'''"),
        ('"""An attribute."""', '"""The size."""'),
        ("factor + SCALE", "factor + (\n            SCALE\n        )"),
        ("class Thing:", "\n\n\nclass Thing:"),
        ("factor=2", "factor = 2"),
        ("\n", "\r\n"),
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(hash_of: Hash, old: str, new: str) -> None:
    assert old in SOURCE
    assert hash_of(SOURCE.replace(old, new)) == hash_of()


@pytest.mark.parametrize(
    ("old", "new"),
    [("= 8", "= 9"), ("= 8", "= 8.0"), ("factor=2", "factor=3"), (" * ", " / "), ("area", "volume"), (": int", "")],
)
def test_constants_defaults_operators_and_names_count(hash_of: Hash, old: str, new: str) -> None:
    assert old in SOURCE
    assert hash_of(SOURCE.replace(old, new)) != hash_of()


def test_quote_style_does_not_count_and_the_text_of_a_string_does(hash_of: Hash) -> None:
    source = SOURCE + "\nname = {!s}\n"
    assert hash_of(source.format("'mha'")) == hash_of(source.format('"m" "ha"')) != hash_of(source.format("'gqa'"))


def test_a_module_that_is_imported_counts(hash_of: Hash) -> None:
    assert hash_of(helper="SCALE = 2\n") != hash_of()
    assert hash_of(helper="SCALE = 1  # as in the paper\n") == hash_of()


def test_a_file_that_cannot_be_parsed_any_more_is_hashed_as_text(hash_of: Hash, tmp_path: Path) -> None:
    before = hash_of()
    cls = sys.modules["hashed.thing"].Thing
    hashes = {before}
    for text in ("class Thing(", "class Thing(  # a comment"):
        (tmp_path / "hashed" / "thing.py").write_text(text)
        hashes.add(code_hash(cls))
    assert len(hashes) == 3


def test_every_python_version_gives_the_same_text() -> None:
    """A version of Python that changes its syntax trees must not change the keys of stored trials."""
    source = 'def f(a: int = None, *, b=0x1F):\n  "doc"\n  return f"{a!r:>{b}} é" "s" + {**b}[1:]\n'
    lines = """
Module(body) [1] FunctionDef(name, args, body) str 'f'
arguments(args, kwonlyargs, kw_defaults, defaults) [1] arg(arg, annotation) str 'a' Name(id) str 'int'
[1] arg(arg) str 'b' [1] Constant(value) int 1f [1] Constant(value) NoneType None
[1] Return(value) BinOp(left, op, right) JoinedStr(values) [2]
FormattedValue(value, conversion, format_spec) Name(id) str 'a' int 72
JoinedStr(values) [2] Constant(value) str '>' FormattedValue(value, conversion) Name(id) str 'b' int -1
Constant(value) str ' \\xe9s' Add()
Subscript(value, slice) Dict(keys, values) [1] NoneType None [1] Name(id) str 'b' Slice(lower) Constant(value) int 1
"""
    assert canonical_text(ast.parse(source)).split() == lines.split()


def test_an_expression_of_many_terms_is_no_problem() -> None:
    assert canonical_text(ast.parse("+".join(["a"] * 2000))).count("Add()") == 1999
