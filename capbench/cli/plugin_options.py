"""The options before the command that decide which plugins are there; every command gets them as its object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capbench.registry import Registry


@dataclass(frozen=True)
class PluginOptions:
    """How plugins are loaded."""

    strict: bool = False

    def load(self) -> Registry:
        """The registry, loaded now: imports torch."""
        from capbench.registry import load_registry

        return load_registry(strict=self.strict)
