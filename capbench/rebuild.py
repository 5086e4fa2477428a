"""From a result document back to the request that made it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar, cast

from capbench.document import command
from capbench.engine.precision import Dtype
from capbench.errors import BadDocument, CannotRepeat
from capbench.plugin import Plugin
from capbench.presets import preset_named
from capbench.protocols import protocol_named
from capbench.registry import Provided, Registry
from capbench.request import Request
from capbench.results import PluginRef, Result
from capbench.settings import Configured, configure

P = TypeVar("P", bound=Plugin)
V = TypeVar("V")


def rebuild(result: Result, registry: Registry) -> Request:
    """The request behind a document; raises CannotRepeat where its plugins are not here as they were there."""
    stated, words = result.protocol, _words(result)

    def asked(option: str, value: V) -> V | None:
        """A value that the user gave; what a preset filled in is left to it again."""
        return value if option in words else None

    return Request(
        task=_configured("task", result.task, registry.tasks, stated.preset),
        architecture=_configured("architecture", result.architecture, registry.architectures, stated.preset),
        solver=_configured("solver", result.solver, registry.solvers, stated.preset),
        preset=preset_named(stated.preset),
        at=asked("--at", stated.at),
        minimize=stated.parameter,
        seeds=asked("--seeds", stated.seeds),
        budget=asked("--budget", stated.budget),
        learning_rates=asked("--lr", stated.learning_rates) or (),
        steps=asked("--steps", stated.steps),
        ci_width=stated.ci_width,
        compile_mode="off",
        dtype=asked("--dtype", cast("Dtype", stated.dtype)),  # whether it is one is checked with the request
        overload=stated.mode == "overload",
        analyse=stated.analyses,
        protocol=protocol_named(stated.name),
    )


def check_request(request: Request, result: Result) -> list[str]:
    """Where a document states another protocol or command than its own request comes to."""
    loaded = {f"{plugin.distribution} {plugin.version}" for plugin in result.environment.plugins}
    findings = [
        *_other_origin("task", result.task, request.task.ref(), loaded),
        *_other_origin("architecture", result.architecture, request.architecture.ref(), loaded),
        *_other_origin("solver", result.solver, request.solver.ref(), loaded),
    ]
    if request.check() != result.protocol:
        findings.append("protocol: it is not what this capbench makes of the document's own request")
    if command(request) != result.command:
        findings.append(f"command: stated {result.command!r}, the document's fields give {command(request)!r}")
    return findings


def _other_origin(name: str, stated: PluginRef, here: PluginRef, loaded: Collection[str]) -> Iterator[str]:
    """Where a document names other fields, or another distribution, than the same code has here."""
    if stated.params != here.params:
        yield f"{name}.params: stated {stated.params}, this code has the fields {here.params}"
    if stated.plugin.rpartition(" ")[0] != here.plugin.rpartition(" ")[0]:
        yield f"{name}.plugin: stated {stated.plugin!r}, this code is of {here.plugin!r}"
    if stated.plugin not in loaded:
        yield f"{name}.plugin: {stated.plugin!r} is not among environment.plugins"


def _words(result: Result) -> list[str]:
    try:
        return shlex.split(result.command)
    except ValueError as error:
        raise BadDocument(
            f"command: it must be a line a shell can read: {error}; take it from `capbench run`"
        ) from error


def _configured(kind: str, stated: PluginRef, shelf: Mapping[str, Provided[P]], preset: str) -> Configured[P]:
    """The plugin of that name as it is installed here, with the document's fields; the code must be the same."""
    distribution, _, version = stated.plugin.rpartition(" ")
    remedy = f"install it: pip install '{distribution}=={version}'"
    if stated.name not in shelf:
        raise CannotRepeat(f"the {kind} {stated.name!r} of {stated.plugin} is not installed; {remedy}")
    found = configure(shelf[stated.name], preset, stated.params)
    if (found.plugin.version, found.code_hash) != (stated.version, stated.code_hash):
        raise CannotRepeat(
            f"the {kind} {stated.name!r} here has version {found.plugin.version} and code {found.code_hash}, "
            f"the document's has version {stated.version} and code {stated.code_hash} of {stated.plugin}; {remedy}"
        )
    return found
