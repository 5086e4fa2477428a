"""Where a plugin class comes from: its distribution, and a hash of the code that decides its results."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

OWN_DISTRIBUTION = "capbench"
OUTSIDE_PACKAGES = {"capbench", "pydantic", "builtins", "abc", "typing"}
"""Packages left out of a code hash; the core is covered by ENGINE_VERSION."""
IGNORED_FIELDS = {"ctx", "kind", "type_comment"}
"""Fields of syntax nodes that do not change what the code does."""
DESCRIPTIVE_METHODS = {"state_size"}
"""Methods that describe a plugin and decide no trial."""


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

    Comments, docstrings, formatting and `DESCRIPTIVE_METHODS` do not count.
    """
    modules: dict[str, str] = {}
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package not in OUTSIDE_PACKAGES:
            _collect(base.__module__, package, modules)
            if is_live(base):
                modules.update(_live_code(base))
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


def is_live(cls: type) -> bool:
    """Whether a class is in no file, such as one of a notebook's cell."""
    is_built_in = cls.__module__ in sys.builtin_module_names
    return not is_built_in and getattr(sys.modules.get(cls.__module__), "__file__", None) is None


def _live_code(cls: type) -> dict[str, str]:
    """The code of a class without a file, and of everything of its module that it uses."""
    found: dict[str, str] = {}
    pending: list[object] = [cls]
    names = vars(sys.modules.get(cls.__module__, sys))
    while pending:
        value = pending.pop()
        label = f"{cls.__module__}:{getattr(value, '__qualname__', '')}"
        if label in found:
            continue
        found[label] = _text_of(value)
        for name in _names_used(value):
            used = names.get(name)
            if isinstance(used, type | FunctionType) and used.__module__ == cls.__module__:
                pending.append(used)
            elif isinstance(used, str | int | float | tuple):
                found[f"{cls.__module__}:{name}="] = repr(used)
    return found


def _text_of(value: object) -> str:
    """The source of a class or a function; of one that was not typed, its compiled code."""
    try:
        return canonical_text(ast.parse(textwrap.dedent(inspect.getsource(value))))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):
        return "\n".join(f"{code.co_name} {code.co_code.hex()} {_constants(code)}" for code in _codes(value))


def _constants(code: CodeType) -> tuple[str, ...]:
    return tuple(repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType))


def _names_used(value: object) -> set[str]:
    """The global names in the code of a class or a function, and the names of its bases."""
    bases = {base.__name__ for base in getattr(value, "__bases__", ())}
    return bases | {name for code in _codes(value) for name in code.co_names}


def _codes(value: object) -> Iterator[CodeType]:
    """The compiled code of a function, or of all functions in a class, with what is nested in it."""
    if isinstance(value, type):
        for member in vars(value).values():
            yield from _codes(member)
    function = getattr(value, "__func__", value)
    pending = [function.__code__] if isinstance(function, FunctionType) else []
    while pending:
        code = pending.pop()
        yield code
        pending.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))


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
            values[name] = [item for item in value if not (_is_docstring(item) or _is_descriptive(item))]
    is_constant = isinstance(node, ast.Constant)  # whose value may be None
    return {name: value for name, value in values.items() if is_constant or (value is not None and value != [])}


def _is_docstring(node: object) -> bool:
    """Whether it is a statement that is only a string: documentation of a module, class, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_descriptive(node: object) -> bool:
    """Whether it is a method that decides no trial."""
    return isinstance(node, ast.FunctionDef) and node.name in DESCRIPTIVE_METHODS


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
