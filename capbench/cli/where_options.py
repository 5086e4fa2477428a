"""The options that say where lane groups run, shared by every command that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda, cuda:N or mps."),
    click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Train on this machine, or on a Ray cluster.",
    ),
    click.option(
        "--address",
        default="auto",
        show_default=True,
        metavar="ADDRESS",
        help="The Ray cluster: auto (the one on this machine), HOST:PORT or ray://HOST:PORT.",
    ),
    click.option(
        "--gpus",
        type=click.FloatRange(min=0, min_open=True, max=1),
        default=1.0,
        show_default=True,
        metavar="SHARE",
        help="Share of a GPU that a lane group takes on a Ray cluster: 0.5 puts two on each.",
    ),
)


def where_options(command: F) -> F:
    """Adds --device, --executor, --address and --gpus: the arguments of capbench.where.Where."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
