"""Writes the reference of every command into cli.md, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from capbench.cli.main import cli

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Puts the reference where the page asks for it."""
    return markdown.replace(MARK, reference())


def reference() -> str:
    """All commands, a heading each, in the order of `capbench --help`."""
    top = click.Context(cli, info_name="capbench")
    return "\n\n".join(section(context) for context in contexts(top))


def contexts(context: click.Context) -> Iterator[click.Context]:
    """A command's context, then those of its subcommands."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from contexts(click.Context(found, parent=context, info_name=name))


def section(context: click.Context) -> str:
    """A command as its own help words it."""
    level = 2 + context.command_path.count(" ")
    return f"{'#' * min(level, 4)} {context.command_path}\n\n```text\n{context.get_help()}\n```"
