"""Plugins that are a single file, used without being packaged or installed."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from capbench.errors import BadPluginFile
from capbench.registry.provenance import Provenance, is_live


def module_name(path: Path) -> str:
    """The module name of a file: its own name, so that its results stay comparable when it is packaged later."""
    name = path.stem.replace("-", "_")
    if path.suffix != ".py" or not name.isidentifier():
        raise BadPluginFile(
            f"a plugin file must be named like a Python module, got {path.name!r}; rename it: my_plugin.py"
        )
    return name


def file_provenance(path: Path) -> Provenance:
    """The file's name and a hash of its content; not its folder, because results are published."""
    name = module_name(path)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise BadPluginFile(f"the plugin file {str(path)!r} cannot be read: {error.strerror or error}") from error
    return Provenance(name, path.name, f"sha256:{digest}", name)


def class_provenance(cls: type) -> Provenance:
    """Where a class comes from that was given as such: its file, or the session in which it was defined."""
    if is_live(cls):
        return Provenance("", "session", "0", cls.__module__)
    path = Path(str(sys.modules[cls.__module__].__file__))
    return file_provenance(path) if "." not in cls.__module__ else Provenance("", path.name, "0", cls.__module__)


def read_loaded_file(provenance: Provenance) -> bytes:
    """The content of a file that was loaded as a plugin; refused where it has changed since."""
    path = Path(str(sys.modules[provenance.module].__file__))
    if file_provenance(path).version != provenance.version:
        raise BadPluginFile(f"the plugin file {provenance.distribution!r} has changed since it was loaded; start again")
    return path.read_bytes()


def load_file(path: Path) -> ModuleType:
    """Imports the file as a module. Its folder is not searched: what it imports must be installed."""
    name, location = module_name(path), str(path.resolve())
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__file__", None) != location:
        raise BadPluginFile(f"{path.name} would hide the module {name!r}, which is in use; rename the file")
    spec = importlib.util.spec_from_file_location(name, location)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
