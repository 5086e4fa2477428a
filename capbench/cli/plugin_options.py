"""The options before the command that decide which plugins are there; every command gets them as its object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from capbench.registry import Call, Registry


@dataclass(frozen=True)
class PluginOptions:
    """How plugins are loaded."""

    strict: bool = False
    files: tuple[Path, ...] = ()
    """Plugins that are single files, loaded after those installed."""
    trace: bool = False
    """Whether every call into a plugin is told on stderr."""

    def load(self) -> Registry:
        """The registry, loaded now: imports torch."""
        from capbench.registry import load_registry

        return load_registry(strict=self.strict, files=self.files, observer=_tell if self.trace else None)


def _tell(call: Call) -> None:
    from capbench.report.text import plain

    origin = f"{call.provenance.distribution} {call.provenance.version}, entry point {call.provenance.entry_point}"
    words = f"trace: {call.what} [{origin}] -> {call.returned or 'nothing'} ({1000 * call.seconds:.1f} ms)"
    click.echo(plain(" ".join(words.split())), err=True)
