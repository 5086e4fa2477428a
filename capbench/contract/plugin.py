"""The base of every plugin class: a name, a version, and fields that are its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Plugin(BaseModel):
    """Base of tasks, architectures, bounds and solvers. The fields are the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]
    """What the user types."""
    version: ClassVar[int] = 1
    """Raised when results stop being comparable with earlier ones."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Field values by preset, where they differ from the defaults: {"smoke": {"n_items": 16}}."""
    later_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields added when there were results already, with the value that those have: it does not change the seeds."""
