"""The request behind a result document."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from capbench.contract.plugin import Plugin
from capbench.documents.result import PluginRef, Result
from capbench.errors import CannotRepeat
from capbench.measure.document import command
from capbench.measure.options import MeasureOptions, RunOptions, parse_command
from capbench.measure.presets import preset_named
from capbench.measure.protocols import protocol_named
from capbench.measure.request import Request
from capbench.registry.registry import Provided, Registry
from capbench.registry.settings import Configured, configure

P = TypeVar("P", bound=Plugin)


def rebuild(result: Result, registry: Registry) -> Request:
    """The request behind a document.

    Raises BadDocument if its command cannot be parsed, and CannotRepeat if a plugin is missing or has other code.
    """
    stated = parse_command(result.command).model_dump(include=set(MeasureOptions.model_fields))
    # The plugins are those of the document's fields, so that a command that names others is found. Where trials are
    # computed is never up to the document: its command could name a cluster.
    names = {"task": result.task.name, "arch": result.architecture.name, "solver": result.solver.name}
    # As it was trained: what long training comes to is not the same for compiled and eager steps.
    is_compiled = any(trial.compiled for trial in result.trials)
    options = RunOptions(**{**stated, **names}, compile_mode="on" if is_compiled else "off")
    return Request(
        task=_configured("task", result.task, registry.tasks, options.preset),
        architecture=_configured("architecture", result.architecture, registry.architectures, options.preset),
        solver=_configured("solver", result.solver, registry.solvers, options.preset),
        options=options,
        preset=preset_named(options.preset),
        training=protocol_named(options.protocol),
    )


def check_request(request: Request, result: Result) -> list[str]:
    """Findings where a document's plugins, protocol or command are not those of its request."""
    loaded = {f"{plugin.distribution} {plugin.version}" for plugin in result.environment.plugins}
    findings = [
        *_check_plugin("task", result.task, request.task.ref(), loaded),
        *_check_plugin("architecture", result.architecture, request.architecture.ref(), loaded),
        *_check_plugin("solver", result.solver, request.solver.ref(), loaded),
    ]
    if request.protocol != result.protocol:
        findings.append("protocol: it does not follow from the document's own request")
    if command(request) != result.command:
        findings.append(f"command: stated {result.command!r}, the document's fields give {command(request)!r}")
    return findings


def _check_plugin(name: str, stated: PluginRef, installed: PluginRef, loaded: Collection[str]) -> Iterator[str]:
    """Findings where a document states other fields or another distribution than the installed code has."""
    if stated.params != installed.params:
        yield f"{name}.params: stated {stated.params}, this code has the fields {installed.params}"
    if stated.plugin.rpartition(" ")[0] != installed.plugin.rpartition(" ")[0]:
        yield f"{name}.plugin: stated {stated.plugin!r}, this code is from {installed.plugin!r}"
    if stated.plugin not in loaded:
        yield f"{name}.plugin: {stated.plugin!r} is not among environment.plugins"


def _configured(kind: str, stated: PluginRef, installed: Mapping[str, Provided[P]], preset: str) -> Configured[P]:
    """The installed plugin of that name with the document's fields; raises CannotRepeat if its code differs."""
    distribution, _, version = stated.plugin.rpartition(" ")
    remedy = f"install it: pip install '{distribution}=={version}'"
    if version.startswith("sha256:"):
        remedy = f"name the file: --plugin {distribution}"
    if stated.name not in installed:
        raise CannotRepeat(f"the {kind} {stated.name!r} of {stated.plugin} is not installed; {remedy}")
    found = configure(installed[stated.name], preset, stated.params)
    if (found.plugin.version, found.code_hash) != (stated.version, stated.code_hash):
        raise CannotRepeat(
            f"the {kind} {stated.name!r} here has version {found.plugin.version} and code {found.code_hash}, "
            f"the document's has version {stated.version} and code {stated.code_hash} of {stated.plugin}; {remedy}"
        )
    return found
