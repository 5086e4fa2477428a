"""Where a plugin class comes from: its distribution, and a hash of the code that decides its results."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

OUTSIDE_PACKAGES = {"capbench", "pydantic", "builtins", "abc", "typing"}
"""Packages left out of a code hash; the core is covered by ENGINE_VERSION."""
IGNORED_FIELDS = {"ctx", "kind", "type_comment"}
"""Fields of syntax nodes that do not change what the code does."""


@dataclass(frozen=True)
class Provenance:
    """The entry point that provides a plugin, and its distribution."""

    entry_point: str
    distribution: str
    version: str
    module: str

    @property
    def is_file(self) -> bool:
        """Whether it is a single file that is not installed: its version is then a hash of its content."""
        return self.version.startswith("sha256:")

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.module})"


def code_hash(cls: type) -> str:
    """Hash of the code of a class, its bases, and the modules of their packages that they import.

    Comments, docstrings and formatting do not count.
    """
    modules: dict[str, str] = {}
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package not in OUTSIDE_PACKAGES:
            _collect(base.__module__, package, modules)
    digest = hashlib.sha256()
    for name, code in sorted(modules.items()):
        digest.update(f"{name}\0{code}\0".encode())
    return digest.hexdigest()[:16]


def _collect(name: str, package: str, modules: dict[str, str]) -> None:
    """Adds the code of a module, and of the modules of the same package that it imports."""
    module = sys.modules.get(name)
    if module is None or name in modules:
        return
    modules[name], imports = _parse(_source(module), module.__package__)
    for imported in imports:
        if imported.partition(".")[0] == package:
            _collect(imported, package, modules)


def _source(module: ModuleType) -> bytes:
    """The content of a module's file; empty where it has none."""
    path = getattr(module, "__file__", None)
    return Path(path).read_bytes() if path is not None and path.endswith(".py") else b""


@cache
def _parse(source: bytes, package: str | None) -> tuple[str, tuple[str, ...]]:
    """The canonical text of a source file of a package, and the absolute names of all modules that it imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file may have changed since it was imported
        return source.decode("utf-8", "replace").replace("\r\n", "\n"), ()
    return canonical_text(tree), tuple(_imports(tree, package))


def _imports(tree: ast.Module, package: str | None) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            target = importlib.util.resolve_name(base, package)
            yield target
            yield from (f"{target}.{alias.name}" for alias in node.names)


def canonical_text(tree: ast.AST) -> str:
    """A syntax tree as text that all supported Python versions agree on, unlike `ast.dump` and `ast.unparse`.

    One line per node, list or value, in pre-order; docstrings are left out.
    """
    lines: list[str] = []
    pending: list[object] = [tree]  # a stack, not recursion: an expression may be nested a thousand deep
    while pending:
        part = pending.pop()
        if isinstance(part, ast.AST):
            fields = _fields(part)
            lines.append(f"{type(part).__name__}({', '.join(fields)})")
            pending.extend(reversed(fields.values()))
        elif isinstance(part, list):
            lines.append(f"[{len(part)}]")
            pending.extend(reversed(part))
        else:
            lines.append(_value_text(part))
    return "\n".join(lines)


def _fields(node: ast.AST) -> dict[str, object]:
    """The fields of a node that matter and are set, in the order of its class."""
    values: dict[str, Any] = {name: getattr(node, name, None) for name in node._fields if name not in IGNORED_FIELDS}
    if isinstance(node, ast.JoinedStr):
        values["values"] = list(_joined(node.values))
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = [item for item in value if not _is_docstring(item)]
    is_constant = isinstance(node, ast.Constant)  # whose value may be None
    return {name: value for name, value in values.items() if is_constant or (value is not None and value != [])}


def _is_docstring(node: object) -> bool:
    """Whether it is a statement that is only a string: documentation of a module, class, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _joined(parts: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string with neighbouring texts joined: Python versions split them differently."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield ast.Constant(text)
        text = ""
        yield part
    if text:
        yield ast.Constant(text)


def _value_text(value: object) -> str:
    # ascii() and hexadecimal: which characters repr() escapes, and how many digits it prints, depends on the version.
    shown = f"{value:x}" if isinstance(value, int) else ascii(value)
    return f"{type(value).__name__} {shown}"
