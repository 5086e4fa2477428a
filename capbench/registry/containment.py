"""Containment: what a plugin does to the process while it is loaded does not reach the results of another one."""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

LOAD_SECONDS = 60.0
"""Longest time that loading one plugin may take; the libraries that it imports included."""
MAX_OUTPUT = 2000
"""Characters of what a plugin prints while it is loaded that are shown."""
ABSENT = object()
EXITS = ("_exit", "abort", "execv", "execve")
"""Functions of `os` that end the program at once, without a word."""


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


@contextmanager
def contained() -> Iterator[list[str]]:
    """A scope for loading a plugin; yields a list that afterwards names what it changed and was restored.

    Raises PluginLeaks where it replaced functions of torch, LoadTimedOut after LOAD_SECONDS.
    """
    settings, changed = _settings(), list[str]()
    before = {setting.name: setting.read() for setting in settings}
    functions = _functions()
    try:
        with _time_limit(LOAD_SECONDS), _no_exit(), _bounded_output():
            yield changed
    finally:
        for setting in settings:
            if not _is_same(setting.read(), before[setting.name]):
                setting.restore(before[setting.name])
                changed.append(setting.name)
        patched = _restore_functions(functions)
    if patched:
        raise PluginLeaks(f"it replaces {', '.join(patched[:3])}, which other plugins use; derive from it instead")


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


def _functions() -> dict[tuple[Any, str], Any]:
    """The functions of torch that models, tasks and the engine call."""
    import torch

    owners: tuple[Any, ...] = (torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.Module, torch.linalg)
    own = {(owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)}
    # What a class inherits may be hidden by a function of its own.
    inherited = {(torch.Tensor, name): ABSENT for name in dir(torch.Tensor) if name not in vars(torch.Tensor)}
    return own | inherited


def _restore_functions(before: Mapping[tuple[Any, str], Any]) -> list[str]:
    """Puts back the functions that were replaced, and returns their names."""
    now = {(owner, name): vars(owner).get(name, ABSENT) for owner, name in before}
    patched = [place for place, value in before.items() if now[place] is not value and not _is_of_torch(now[place])]
    for owner, name in patched:
        if before[owner, name] is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before[owner, name])
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in patched]


def _is_of_torch(function: Any) -> bool:
    """Whether the code of a function is torch's own: its compiler wraps some functions when it is first imported."""
    import torch

    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(str(torch.__file__)).parent)


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
