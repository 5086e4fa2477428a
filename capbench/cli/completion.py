"""`capbench completion`, and the plugin names that TAB offers, parsed from source files: importing takes seconds."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
from click.shell_completion import get_completion_class

BASE_CLASSES = {
    "capbench_tasks": {"Task"},
    "capbench_architectures": {"Architecture"},
    "capbench_bounds": {"Bound"},
    "capbench_solvers": {"Solver", "GradientSolver", "ConstructiveSolver"},
}
"""Names of the base classes of the plugins that each hook returns."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script: eval "$(capbench completion bash)"."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "capbench", "_CAPBENCH_COMPLETE").source())


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
    return _names(ctx, incomplete, tuple(BASE_CLASSES))


def _names(ctx: click.Context, incomplete: str, hooks: tuple[str, ...]) -> list[str]:
    before: tuple[Path, ...] = ctx.find_root().params.get("plugin_files") or ()
    files = {*before, *getattr(ctx.obj, "files", ())}
    found = {name for path in [*_installed(), *files] for name in plugin_names(path, hooks)}
    return sorted(name for name in found if name.startswith(incomplete))


def plugin_names(path: Path, hooks: tuple[str, ...]) -> list[str]:
    """Names of the plugin classes in a file, where they are literals; empty if the file cannot be parsed."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    offered = [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name in BASE_CLASSES]
    wanted = set(hooks) & set(offered)
    is_all_wanted = wanted == set(offered)
    bases = {base for hook in wanted for base in BASE_CLASSES[hook]}
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    # A file with one kind of plugin is not checked for base classes, which may be in another file.
    return [n for cls in classes if is_all_wanted or bases & _bases(cls) for n in _name(cls)] if wanted else []


def _installed() -> Iterator[Path]:
    """The source files of the entry points."""
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
    """The value of `name = "…"` in a class, if there is one."""
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign | ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id == "name":
            yield str(node.value.value)
