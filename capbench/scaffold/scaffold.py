"""The distribution of a new plugin: its names, its files, and the next steps for its author."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from capbench import __version__
from capbench.errors import BadSetting
from capbench.registry.registry import Registry

MAX_NAME_LENGTH = 40
NAME_PATTERN = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "{module}.py": "{kind}.py.j2",
    "test_{module}.py": "test.py.j2",
    "README.md": "README.md.j2",
    ".github/workflows/ci.yml": "ci.yml.j2",
}
"""Every file of the distribution and its template."""
FIRST_RUN = {
    "architecture": "run --task rgr --arch {module} --preset smoke",
    "task": "run --task {module} --arch mlp --preset smoke",
    "bound": "bounds --task rgr --arch mha",
    "solver": "run --task rgr --arch mha --solver {module} --preset smoke",
}
"""The arguments of the first `capbench` command to try, by kind of plugin."""


@dataclass(frozen=True)
class Scaffold:
    """A distribution to write: its name, from which all others derive, and the kind of plugin it provides."""

    name: str
    kind: str

    @classmethod
    def named(cls, name: str, kind: str) -> Scaffold:
        """A scaffold whose name is valid for a module and hides no other module; raises BadSetting otherwise."""
        scaffold = cls(name, kind)
        reason = _why_invalid(name, scaffold.module)
        if reason:
            raise BadSetting(f"{name!r} cannot be a plugin's name: {reason}; a valid one is my-attention")
        return scaffold

    @property
    def module(self) -> str:
        """The name of the module, which is also the plugin's name on the command line."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The name of the plugin class."""
        return "".join(part.capitalize() for part in self.module.split("_"))

    @property
    def first_run(self) -> str:
        """The arguments of the first `capbench` command to try."""
        return FIRST_RUN[self.kind].format(module=self.module)

    def refuse_taken(self, registry: Registry) -> None:
        """Raises BadSetting if an installed plugin or entry point has the name."""
        by_name = (registry.tasks, registry.architectures, registry.bounds, registry.solvers)
        plugins = [provided[self.module].provenance for provided in by_name if self.module in provided]
        modules = [*registry.loaded, *(failure.provenance for failure in registry.failures)]
        taken = [*plugins, *(p for p in modules if p.entry_point == self.module)]
        if taken:
            raise BadSetting(f"the name {self.module!r} is taken by {taken[0]}; choose another (capbench list)")

    def files(self) -> dict[str, str]:
        """The text of every file, by its path in the distribution."""
        templates = Environment(
            loader=PackageLoader("capbench.scaffold"),
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
        )
        return {
            path.format(module=self.module): templates.get_template(source.format(kind=self.kind)).render(
                plugin=self, capbench_version=__version__
            )
            for path, source in FILES.items()
        }

    def write(self, parent: Path) -> Path:
        """Writes the distribution into a new folder and returns the folder."""
        folder = parent / self.name
        if folder.exists():
            raise BadSetting(f"{str(folder)!r} exists already; remove it, or choose another name or --dir")
        try:
            for path, text in self.files().items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise BadSetting(
                f"cannot write {str(folder)!r}: {error.strerror or error}; choose another --dir"
            ) from error
        return folder


def next_steps(scaffold: Scaffold, folder: Path) -> str:
    """A message that lists the files written and the commands to run next."""
    module = scaffold.module
    return "\n".join(
        [
            f"{folder}: {', '.join(path.format(module=module) for path in FILES)}",
            "",
            "next:",
            f"  cd {folder}",
            f"  capbench --plugin ./{module}.py {scaffold.first_run}   # without installing it",
            '  pip install -e ".[test]"',
            "  pytest",
            f"  capbench check {module}",
            f"  capbench {scaffold.first_run}",
        ]
    )


def _why_invalid(name: str, module: str) -> str | None:
    """The reason why a name is invalid, or None."""
    if not NAME_PATTERN.fullmatch(name):
        return "it must be lower-case words of letters and digits, joined by '-'"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed"
    if keyword.iskeyword(module):
        return f"{module!r} is a Python keyword"
    if module in sys.stdlib_module_names:
        return f"it would hide the standard library's module {module!r}"
    if module.startswith(("capbench", "test_")):
        return "names that start with 'capbench' or 'test_' are reserved for capbench and for tests"
    if module in sys.modules or importlib.util.find_spec(module) is not None:
        return f"it would hide the installed module {module!r}"
    return None
