"""Where a plugin class comes from: its distribution, and a hash of the code that decides its results."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Provenance:
    """The entry point that brought a plugin in, and the distribution behind it."""

    entry_point: str
    distribution: str
    version: str
    module: str

    @property
    def is_file(self) -> bool:
        """Whether it is a single file that was not installed: its version is then a hash of its text."""
        return self.version.startswith("sha256:")

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.module})"


def code_hash(cls: type) -> str:
    """Hash of the source files behind a class: its own and its bases', and what they import of their package.

    capbench's own core is left out: it has a version of its own in every trial's key.
    """
    sources: dict[str, str] = {}
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package not in {"capbench", "pydantic", "builtins", "abc", "typing"}:
            _collect(base.__module__, package, sources)
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\0{source}\0".encode())
    return digest.hexdigest()[:16]


def _collect(name: str, package: str, sources: dict[str, str]) -> None:
    """Adds a module's source, and that of the modules of the same package it imports."""
    module = sys.modules.get(name)
    if module is None or name in sources:
        return
    sources[name] = source = _source(module)
    for imported in _imports(source, module.__package__):
        if imported.partition(".")[0] == package:
            _collect(imported, package, sources)


def _source(module: ModuleType) -> str:
    """A module's text with plain line ends; empty where it has no file."""
    path = getattr(module, "__file__", None)
    if path is None or not path.endswith(".py"):
        return ""
    return Path(path).read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


@cache
def _imports(source: str, package: str | None) -> tuple[str, ...]:
    """Absolute names of all modules that a source text of a package imports, at any depth."""
    return tuple(_walk_imports(source, package))


def _walk_imports(source: str, package: str | None) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            target = importlib.util.resolve_name(base, package)
            yield target
            yield from (f"{target}.{alias.name}" for alias in node.names)
