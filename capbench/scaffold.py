"""A new plugin's distribution: its names, its files and what to do with them."""

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
from capbench.registry import Registry

LONGEST = 40
DISTRIBUTION = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "{module}.py": "{kind}.py.j2",
    "test_{module}.py": "test.py.j2",
    "README.md": "README.md.j2",
    ".github/workflows/ci.yml": "ci.yml.j2",
}
"""Every file of the distribution and the template it comes from."""
FIRST_RUN = {
    "architecture": "run --task rgr --arch {module} --preset smoke",
    "task": "run --task {module} --arch mlp --preset smoke",
    "bound": "bounds --task rgr --arch mha",
    "solver": "run --task rgr --arch mha --solver {module} --preset smoke",
}
"""What shows a new plugin at work, by its kind."""


@dataclass(frozen=True)
class Scaffold:
    """A distribution to be: what it provides, and the name that all its names follow from."""

    name: str
    kind: str

    @classmethod
    def named(cls, name: str, kind: str) -> Scaffold:
        """Refuses names that would not do for a module, or would hide one."""
        scaffold = cls(name, kind)
        reason = _objection(name, scaffold.module)
        if reason:
            raise BadSetting(f"{name!r} will not do as a plugin's name: {reason}; for example: my-attention")
        return scaffold

    @property
    def module(self) -> str:
        """The module's name, which is also what the user types."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The plugin class."""
        return "".join(word.capitalize() for word in self.module.split("_"))

    @property
    def first_run(self) -> str:
        """The words after `capbench` that show it at work."""
        return FIRST_RUN[self.kind].format(module=self.module)

    def refuse_taken(self, registry: Registry) -> None:
        """Raises where an installed plugin answers to the name."""
        shelves = (registry.tasks, registry.architectures, registry.bounds, registry.solvers)
        found = [shelf[self.module].provenance for shelf in shelves if self.module in shelf]
        points = [*registry.loaded, *(failure.provenance for failure in registry.failures)]
        taken = [*found, *(p for p in points if p.entry_point == self.module)]
        if taken:
            raise BadSetting(f"the name {self.module!r} is taken by {taken[0]}; choose another (capbench list)")

    def files(self) -> dict[str, str]:
        """Every file's text, by its path in the distribution."""
        templates = Environment(
            loader=PackageLoader("capbench"), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
        )
        return {
            path.format(module=self.module): templates.get_template(source.format(kind=self.kind)).render(
                plugin=self, capbench_version=__version__
            )
            for path, source in FILES.items()
        }

    def write(self, parent: Path) -> Path:
        """Writes the distribution into a new folder and returns it."""
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
    """What was written, and the commands that come next."""
    module = scaffold.module
    return "\n".join(
        [
            f"{folder}: {', '.join(path.format(module=module) for path in FILES)}",
            "",
            "next:",
            f"  cd {folder}",
            f"  capbench --plugin ./{module}.py {scaffold.first_run}   # as it is, nothing installed",
            '  pip install -e ".[test]"',
            "  pytest",
            f"  capbench check {module}",
            f"  capbench {scaffold.first_run}",
        ]
    )


def _objection(name: str, module: str) -> str | None:
    """Why a name will not do, or None."""
    if not DISTRIBUTION.fullmatch(name):
        return "it must be lower-case words of letters and digits, joined by '-'"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, {LONGEST} at most"
    if keyword.iskeyword(module):
        return f"{module!r} is a word of Python itself"
    if module in sys.stdlib_module_names:
        return f"it would hide Python's own module {module!r}"
    if module.startswith(("capbench", "test_")):
        return "names that start with 'capbench' or 'test_' are kept for capbench and for tests"
    if module in sys.modules or importlib.util.find_spec(module) is not None:
        return f"it would hide the installed module {module!r}"
    return None
