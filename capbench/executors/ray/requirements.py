"""Requirements: which capbench and which plugins a trial group takes, and whether a worker has the same."""

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
    """The file itself, where the plugin is one that was not installed: it is sent with the group."""

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
    return Requirements(__version__, ENGINE_VERSION, tuple(dict.fromkeys(_requirement(plugin) for plugin in plugins)))


def check_requirements(node: str, requirements: Requirements) -> None:
    """Raises WorkersDiffer if this worker lacks what the driver has; otherwise imports the plugins."""
    if (__version__, ENGINE_VERSION) != requirements[:2]:
        raise WorkersDiffer(
            f"node {node} has capbench {__version__} (engine {ENGINE_VERSION}), the driver has {requirements.capbench} "
            f"(engine {requirements.engine}); install it there: pip install 'capbench=={requirements.capbench}'"
        )
    for requirement in requirements.plugins:
        if requirement.text is None:
            _check_version(node, requirement)
        _check_code(node, requirement)


def _check_code(node: str, requirement: Requirement) -> None:
    try:
        found = _hash(requirement.module, requirement.cls) if requirement.text is None else _hash_of_text(requirement)
    except (Exception, SystemExit) as error:  # the plugin border
        raise WorkersDiffer(
            f"node {node} cannot import {requirement.name!r} of {requirement.distribution} {requirement.version}: "
            f"{type(error).__name__}: {error}; install what it needs there"
        ) from error
    if found != requirement.code_hash:
        raise WorkersDiffer(
            f"node {node} has other code of {requirement.name!r} under the name {requirement.distribution} "
            f"{requirement.version} (hash {found}, the driver's {requirement.code_hash}); {requirement.remedy}"
        )


def _check_version(node: str, requirement: Requirement) -> None:
    whose = f"which {requirement.name!r} comes from"
    try:
        found = importlib.metadata.version(requirement.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise WorkersDiffer(
            f"node {node} has no {requirement.distribution}, {whose}; the driver has {requirement.version}: "
            f"{requirement.remedy}"
        ) from None
    if found != requirement.version:
        raise WorkersDiffer(
            f"node {node} has {requirement.distribution} {found}, {whose}; the driver has {requirement.version}: "
            f"{requirement.remedy}"
        )


def _requirement(configured: Configured[Any]) -> Requirement:
    cls, origin = type(configured.plugin), configured.provenance
    text = read_loaded_file(origin) if origin.is_file else None
    return Requirement(
        cls.name, origin.distribution, origin.version, cls.__module__, cls.__qualname__, configured.code_hash, text
    )


@cache
def _hash(module: str, cls: str) -> str:
    """Hash of an installed class, imported and read once in the life of a worker."""
    return code_hash(attrgetter(cls)(importlib.import_module(module)))


def _hash_of_text(requirement: Requirement) -> str:
    """Hash of a class whose file was sent with the group, loaded as the driver loaded its own."""
    assert requirement.text is not None
    path = _folder() / requirement.distribution
    if not path.exists() or path.read_bytes() != requirement.text:
        path.write_bytes(requirement.text)
        load_file(path)
    return code_hash(attrgetter(requirement.cls)(sys.modules[requirement.module]))


@cache
def _folder() -> Path:
    """A temporary folder; a newer version of a file replaces the older one."""
    folder = tempfile.TemporaryDirectory(prefix="capbench-plugins-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
