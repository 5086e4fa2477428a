"""Containment: what a plugin does to the process, loaded or called, does not reach the results of another one."""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from capbench.registry.provenance import OWN_DISTRIBUTION, Provenance

LOAD_SECONDS = 60.0
"""Longest time that loading one plugin may take; the libraries that it imports included."""
MAX_OUTPUT = 2000
"""Characters of what a plugin prints while it is loaded that are shown."""
ABSENT = object()
OWN_PREFIX = "capbench"
"""How packages are named whose functions no plugin may replace: capbench, its plugins and its leaderboard."""
EXITS = ("_exit", "abort", "execv", "execve")
"""Functions of `os` that end the program at once, without a word."""


class PluginWarning(UserWarning):
    """A plugin could not be loaded, or changed the process; the others still work."""


class PluginLeaks(RuntimeError):
    """A plugin replaced functions that others use, or tried to end the program."""


class LoadTimedOut(BaseException):
    """Loading a plugin took too long; no `except Exception` of the plugin stops it."""


@dataclass(frozen=True)
class Setting:
    """A state of the process that decides results, or that other plugins rely on."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], object]


@dataclass
class Changes:
    """What was changed within a scope, and put back at its end."""

    settings: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)


@contextmanager
def contained() -> Iterator[Changes]:
    """A scope for loading a plugin; what it changed is put back and named in what this yields, when the scope ends.

    Raises PluginLeaks where it replaced functions of torch or capbench, LoadTimedOut after LOAD_SECONDS.
    """
    with _restored() as changes, _time_limit(LOAD_SECONDS), _no_exit(), _bounded_output():
        yield changes
    if changes.functions:
        raise PluginLeaks(f"it replaces {_first(changes.functions)}, which other plugins use; derive from it instead")


@contextmanager
def contained_calls(origins: Iterable[Provenance]) -> Iterator[None]:
    """A scope for calls of plugins: what they change is put back, with a warning that names those not of capbench."""
    foreign = {origin for origin in origins if origin.distribution != OWN_DISTRIBUTION}
    if not foreign:  # capbench's own are trusted
        yield
        return
    changes = Changes()
    try:
        with _restored() as changes:
            yield
    finally:
        changed = [*changes.settings, *changes.functions]
        if changed:
            named = " or ".join(sorted(f"plugin {origin.entry_point!r} of {origin}" for origin in foreign))
            warnings.warn(
                f"{named} changed {_first(changed)} while it was called; that was undone, because it would change "
                "the results of other plugins",
                PluginWarning,
                stacklevel=3,
            )


@contextmanager
def _restored() -> Iterator[Changes]:
    """A scope after which settings and functions are as they were before."""
    settings, changes = _settings(), Changes()
    before = {setting.name: setting.read() for setting in settings}
    places = _places()
    functions = _functions(places)
    try:
        yield changes
    finally:
        for setting in settings:
            if not _is_same(setting.read(), before[setting.name]):
                setting.restore(before[setting.name])
                changes.settings.append(setting.name)
        changes.functions.extend(_restore_functions(places, functions))


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _settings() -> list[Setting]:
    import torch

    return [
        Setting("the working directory", Path.cwd, os.chdir),
        Setting("environment variables", lambda: dict(os.environ), _set_environment),
        Setting("the seed of `random`", random.getstate, random.setstate),
        Setting("the seed of numpy", _numpy_state, _set_numpy_state),
        Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("torch's default device", torch.get_default_device, _set_default_device),
        Setting("torch's threads", torch.get_num_threads, torch.set_num_threads),
        Setting("torch's determinism", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        Setting("torch's autocast", _autocast, _set_autocast),
        Setting("torch's gradients", torch.is_grad_enabled, torch.set_grad_enabled),
        Setting("torch's matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        Setting("torch's seed", torch.get_rng_state, torch.set_rng_state),
    ]


def _numpy_state() -> tuple[Any, ...]:
    import numpy

    name, keys, *rest = numpy.random.get_state()
    return name, bytes(keys), *rest  # type: ignore[arg-type]  # the stub knows only the other form of the state


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    import numpy

    numpy.random.set_state((state[0], numpy.frombuffer(state[1], numpy.uint32), *state[2:]))


def _autocast() -> bool:
    import torch

    return torch.is_autocast_enabled("cpu")


def _set_autocast(is_enabled: bool) -> None:
    import torch

    torch.set_autocast_enabled("cpu", is_enabled)


def _set_default_device(device: Any) -> None:
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)  # None, so that no mode stays active


def _is_same(one: Any, other: Any) -> bool:
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)


def _set_environment(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


Place = tuple[Any, Mapping[str, Any], str]
"""A module or class, its names, and the name of one of its functions."""


def _places() -> tuple[Place, ...]:
    """The functions of torch and capbench that models, tasks and the engine call, and those of built-in plugins."""
    return _torch_places() + _capbench_places(len(sys.modules))


@cache
def _torch_places() -> tuple[Place, ...]:
    import torch
    from torch import nn

    modules = (torch, nn, nn.functional, nn.init, torch.linalg, torch.special, torch.fft, torch.func)
    layers = [value for value in vars(nn).values() if isinstance(value, type)]
    owners: tuple[Any, ...] = (*modules, torch.Tensor, *dict.fromkeys(layers))
    own = [(owner, vars(owner), name) for owner in owners for name, value in vars(owner).items() if callable(value)]
    # What a class inherits may be hidden by a function of its own.
    names = vars(torch.Tensor)
    return (*own, *((torch.Tensor, names, name) for name in dir(torch.Tensor) if name not in names))


@lru_cache(maxsize=1)
def _capbench_places(_n_modules: int) -> tuple[Place, ...]:
    """Functions and methods of capbench and its plugins, looked for again when other modules have been imported."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(OWN_PREFIX) and module]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    kinds = (FunctionType, classmethod, staticmethod, property)
    return tuple(
        (owner, vars(owner), name)
        for owner in (*modules, *classes)
        for name, value in vars(owner).items()
        if isinstance(value, kinds)
    )


def _functions(places: tuple[Place, ...]) -> list[Any]:
    """What stands at each place."""
    return [names.get(name, ABSENT) for _, names, name in places]


def _restore_functions(places: tuple[Place, ...], before: list[Any]) -> list[str]:
    """Puts back the functions that were replaced, and returns their names."""
    replaced = []
    for (owner, _, name), value, now in zip(places, before, _functions(places), strict=True):
        if now is value or _is_by_compiler(now, value):
            continue
        if value is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
        replaced.append(f"{getattr(owner, '__name__', owner)}.{name}")
    return replaced


def _is_by_compiler(function: Any, before: Any) -> bool:
    """Whether torch's compiler has wrapped a function, as it does with some when it is first imported or used."""
    import torch

    code, folder = getattr(function, "__code__", None), Path(str(torch.__file__)).parent
    path = Path(code.co_filename) if code is not None else Path()
    is_of_compiler = path == folder / "_compile.py" or path.is_relative_to(folder / "_dynamo")
    return is_of_compiler and getattr(function, "__wrapped__", before) is before


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises LoadTimedOut in the main thread when time is up, and again every second; needs the system's timers."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise LoadTimedOut(f"loading it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _no_exit() -> Iterator[None]:
    """Makes the functions that would end the program raise, so that the plugin can be named."""

    def refuse(name: str) -> Callable[..., None]:
        def refused(*_: object) -> None:
            raise PluginLeaks(f"it calls os.{name} while it is loaded, which would end the program")

        return refused

    before = {name: getattr(os, name) for name in EXITS if hasattr(os, name)}
    for name in before:
        setattr(os, name, refuse(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


class _Bounded(io.StringIO):
    """Keeps the beginning of what is written, and counts the rest."""

    n_hidden = 0

    def write(self, text: str) -> int:
        room = max(0, MAX_OUTPUT - self.tell())
        self.n_hidden += len(text) - len(text[:room])
        super().write(text[:room])
        return len(text)


@contextmanager
def _bounded_output() -> Iterator[None]:
    """Shows what is printed on stderr, at most MAX_OUTPUT characters of it."""
    printed = _Bounded()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            yield
    finally:
        hidden = f"\n[{printed.n_hidden:,} more characters]\n" if printed.n_hidden else ""
        with suppress(OSError, ValueError):
            sys.stderr.write(printed.getvalue() + hidden)
