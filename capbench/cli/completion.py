"""What TAB offers: names of plugins, read off their source text, because importing them would take seconds."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click

BASES = {
    "capbench_tasks": {"Task"},
    "capbench_architectures": {"Architecture"},
    "capbench_bounds": {"Bound"},
    "capbench_solvers": {"Solver", "GradientSolver", "ConstructiveSolver"},
}
"""What a class that a hook returns is derived from, as its source says."""


def tasks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of tasks."""
    return _names(ctx, incomplete, ("capbench_tasks",))


def archs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of architectures."""
    return _names(ctx, incomplete, ("capbench_architectures",))


def solvers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of solvers."""
    return _names(ctx, incomplete, ("capbench_solvers",))


def plugins(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of plugins of any kind."""
    return _names(ctx, incomplete, tuple(BASES))


def _names(ctx: click.Context, incomplete: str, hooks: tuple[str, ...]) -> list[str]:
    files: tuple[Path, ...] = ctx.find_root().params.get("plugin_files") or ()
    found = {name for path in [*_installed(), *files] for name in names_in(path, hooks)}
    return sorted(name for name in found if name.startswith(incomplete))


def names_in(path: Path, hooks: tuple[str, ...]) -> list[str]:
    """The literal names of a file's plugin classes; none where the file cannot be read."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    offered = [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name in BASES]
    wanted = set(hooks) & set(offered)
    is_all_wanted = wanted == set(offered)
    bases = {base for hook in wanted for base in BASES[hook]}
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    # A file with one kind of plugin needs no look at the bases, which may stand in another file.
    return [n for cls in classes if is_all_wanted or bases & _bases(cls) for n in _name(cls)] if wanted else []


def _installed() -> Iterator[Path]:
    """The source files behind the entry points."""
    for point in entry_points(group="capbench"):
        try:
            spec = importlib.util.find_spec(point.module)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin)


def _bases(cls: ast.ClassDef) -> set[str]:
    return {base.attr if isinstance(base, ast.Attribute) else ast.unparse(base) for base in cls.bases}


def _name(cls: ast.ClassDef) -> Iterator[str]:
    """The value of `name = "…"` in a class."""
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign | ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id == "name":
            yield str(node.value.value)
