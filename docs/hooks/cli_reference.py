"""An mkdocs hook that generates the command reference in cli.md from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from capbench.cli.main import cli

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replaces the mark in a page by the reference."""
    return markdown.replace(MARK, reference())


def reference() -> str:
    """All commands, one heading each, in the order of `capbench --help`."""
    top = click.Context(cli, info_name="capbench")
    return "\n\n".join(help_section(context) for context in contexts(top))


def contexts(context: click.Context) -> Iterator[click.Context]:
    """The context of a command, then those of its subcommands."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from contexts(click.Context(found, parent=context, info_name=name))


def help_section(context: click.Context) -> str:
    """The heading of a command and its help text."""
    level = 2 + context.command_path.count(" ")
    return f"{'#' * min(level, 4)} {context.command_path}\n\n```text\n{context.get_help()}\n```"
