"""Settings: from plugin classes and `--set` options to configured plugins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from capbench.contract.plugin import Plugin
from capbench.documents.result import PluginRef
from capbench.errors import BadSetting, BadValue, UnknownName
from capbench.registry.containment import contained_calls
from capbench.registry.provenance import Provenance, code_hash
from capbench.registry.registry import Provided

P = TypeVar("P", bound=Plugin)

SECTIONS = ("task", "arch", "solver")


@dataclass(frozen=True)
class Configured(Generic[P]):
    """A plugin instance, its provenance, and the hash of its code."""

    plugin: P
    provenance: Provenance
    code_hash: str

    def contained(self) -> AbstractContextManager[None]:
        """A scope for calling it: what it changes of the process is put back, with a warning that names it."""
        return contained_calls([self.provenance])

    def ref(self) -> PluginRef:
        """How the result document refers to it."""
        return PluginRef(
            name=self.plugin.name,
            version=self.plugin.version,
            params=self.plugin.model_dump(mode="json"),
            plugin=f"{self.provenance.distribution} {self.provenance.version}",
            code_hash=self.code_hash,
        )

    def replaced(self, **fields: Any) -> Configured[P]:
        """The same plugin with some fields changed, validated again."""
        values = {**self.plugin.model_dump(), **fields}
        return Configured(_validate(type(self.plugin), values), self.provenance, self.code_hash)


def configure(provided: Provided[P], preset: str, overrides: Mapping[str, Any]) -> Configured[P]:
    """An instance with the values of a preset, then the user's overrides."""
    cls = provided.cls
    for field in overrides:
        if field not in cls.model_fields:
            raise UnknownName.among(f"field of {cls.name}", field, cls.model_fields, f"capbench describe {cls.name}")
    values = {**cls.presets.get(preset, {}), **overrides}
    return Configured(_validate(cls, values), provided.provenance, code_hash(cls))


def parse_settings(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`--set section.field=value` options as one mapping per section."""
    parsed: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, field = path.partition(".")
        if not (equals and dot and field and section in parsed):
            raise BadSetting(f"--set takes task.FIELD=VALUE, arch.FIELD=VALUE or solver.FIELD=VALUE, got {setting!r}")
        parsed[section][field] = _parse_value(text)
    return parsed


def _parse_value(text: str) -> Any:
    """JSON where it parses, the content of a JSON file after '@', else the text itself."""
    if text.startswith("@"):
        try:
            return json.loads(Path(text[1:]).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadSetting(f"{text[1:]!r} must be a readable JSON file: {error}") from error
    try:
        return json.loads(text)
    except ValueError:
        return text


def _validate(cls: type[P], values: Mapping[str, Any]) -> P:
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        got = f", got {first['input']!r}" if field else ""
        message = f"{cls.name}{'.' if field else ''}{field}: {reason}{got} (capbench describe {cls.name})"
        raise (BadValue if field else BadSetting)(message) from error
