"""`capbench completion`: the script that makes a shell complete capbench's words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script: eval "$(capbench completion bash)"."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "capbench", "_CAPBENCH_COMPLETE").source())
