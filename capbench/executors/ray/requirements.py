"""Needs: which capbench and which plugins a lane group takes, and whether a worker has the same."""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from capbench import __version__
from capbench.engine.trials import ENGINE_VERSION
from capbench.errors import WorkersDiffer
from capbench.registry.plugin_file import load_file, read_loaded_file
from capbench.registry.provenance import code_hash
from capbench.registry.settings import Configured


class Requirement(NamedTuple):
    """A plugin class as the driver has it: who provides it, and the hash of its code."""

    name: str
    distribution: str
    version: str
    module: str
    cls: str
    code_hash: str
    text: bytes | None
    """The file itself, where the plugin is one that was not installed: it travels with the group."""

    @property
    def remedy(self) -> str:
        """What to type where it is missing."""
        return f"install it there: pip install '{self.distribution}=={self.version}'"


class Requirements(NamedTuple):
    """All that a worker must have in common with the driver."""

    capbench: str
    engine: int
    plugins: tuple[Requirement, ...]


def requirements_of(plugins: Iterable[Configured[Any]]) -> Requirements:
    """What groups of these plugins take, each plugin once."""
    return Requirements(__version__, ENGINE_VERSION, tuple(dict.fromkeys(_need(plugin) for plugin in plugins)))


def check_requirements(node: str, requirements: Requirements) -> None:
    """Raises WorkersDiffer on a worker that has not what the driver has; imports the plugins where it has."""
    if (__version__, ENGINE_VERSION) != requirements[:2]:
        raise WorkersDiffer(
            f"node {node} has capbench {__version__} (engine {ENGINE_VERSION}), the driver has {requirements.capbench} "
            f"(engine {requirements.engine}); install it there: pip install 'capbench=={requirements.capbench}'"
        )
    for need in requirements.plugins:
        if need.text is None:
            _check_version(node, need)
        _check_code(node, need)


def _check_code(node: str, need: Requirement) -> None:
    try:
        found = _hash(need.module, need.cls) if need.text is None else _hash_of_text(need)
    except (Exception, SystemExit) as error:  # the plugin border
        raise WorkersDiffer(
            f"node {node} cannot import {need.name!r} of {need.distribution} {need.version}: "
            f"{type(error).__name__}: {error}; install what it needs there"
        ) from error
    if found != need.code_hash:
        raise WorkersDiffer(
            f"node {node} has other code of {need.name!r} under the name {need.distribution} {need.version} "
            f"(hash {found}, the driver's {need.code_hash}); {need.remedy}"
        )


def _check_version(node: str, need: Requirement) -> None:
    whose = f"which {need.name!r} comes from"
    try:
        found = importlib.metadata.version(need.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise WorkersDiffer(
            f"node {node} has no {need.distribution}, {whose}; the driver has {need.version}: {need.remedy}"
        ) from None
    if found != need.version:
        raise WorkersDiffer(
            f"node {node} has {need.distribution} {found}, {whose}; the driver has {need.version}: {need.remedy}"
        )


def _need(configured: Configured[Any]) -> Requirement:
    cls, origin = type(configured.plugin), configured.provenance
    text = read_loaded_file(origin) if origin.is_file else None
    return Requirement(
        cls.name, origin.distribution, origin.version, cls.__module__, cls.__qualname__, configured.code_hash, text
    )


@cache
def _hash(module: str, cls: str) -> str:
    """Hash of an installed class, imported and read once in the life of a worker."""
    return code_hash(attrgetter(cls)(importlib.import_module(module)))


def _hash_of_text(need: Requirement) -> str:
    """Hash of a class whose file travelled with the group, loaded as the driver loaded its own."""
    assert need.text is not None
    path = _folder() / need.distribution
    if not path.exists() or path.read_bytes() != need.text:
        path.write_bytes(need.text)
        load_file(path)
    return code_hash(attrgetter(need.cls)(sys.modules[need.module]))


@cache
def _folder() -> Path:
    """A folder of this worker's own; a file that comes again in another version takes the same place."""
    folder = tempfile.TemporaryDirectory(prefix="capbench-plugins-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
