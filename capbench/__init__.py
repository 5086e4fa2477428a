"""How many facts can a neural architecture hold, how sure are we, and how close is that to theory?

The names below are all that a plugin needs, and `run` and `load` for notebooks. Each is imported when it is first
used, so that `import capbench` is quick; none of them imports torch before it is called.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capbench.api import Run as Run
    from capbench.api import load as load
    from capbench.api import run as run
    from capbench.architecture import Architecture as Architecture
    from capbench.architecture import Heads as Heads
    from capbench.bound import D_K as D_K
    from capbench.bound import FACTS as FACTS
    from capbench.bound import Bound as Bound
    from capbench.bound import BoundValue as BoundValue
    from capbench.bound import Kind as Kind
    from capbench.bound import Pedigree as Pedigree
    from capbench.errors import CannotConstruct as CannotConstruct
    from capbench.errors import CapbenchError as CapbenchError
    from capbench.errors import LoadOutOfRange as LoadOutOfRange
    from capbench.errors import NotApplicable as NotApplicable
    from capbench.errors import UnsupportedSignature as UnsupportedSignature
    from capbench.hookspecs import hookimpl as hookimpl
    from capbench.plugin import Plugin as Plugin
    from capbench.signatures import Lookup as Lookup
    from capbench.signatures import Recall as Recall
    from capbench.signatures import Relation as Relation
    from capbench.signatures import Signature as Signature
    from capbench.solver import ConstructiveSolver as ConstructiveSolver
    from capbench.solver import GradientSolver as GradientSolver
    from capbench.solver import Solver as Solver
    from capbench.task import Criterion as Criterion
    from capbench.task import Problem as Problem
    from capbench.task import Recipe as Recipe
    from capbench.task import Task as Task

__version__ = "0.1.0"

_HOME = {
    "api": ("Run", "load", "run"),
    "architecture": ("Architecture", "Heads"),
    "bound": ("D_K", "FACTS", "Bound", "BoundValue", "Kind", "Pedigree"),
    "errors": ("CannotConstruct", "CapbenchError", "LoadOutOfRange", "NotApplicable", "UnsupportedSignature"),
    "hookspecs": ("hookimpl",),
    "plugin": ("Plugin",),
    "signatures": ("Lookup", "Recall", "Relation", "Signature"),
    "solver": ("ConstructiveSolver", "GradientSolver", "Solver"),
    "task": ("Criterion", "Problem", "Recipe", "Task"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'capbench' has no attribute {name!r}")
    return getattr(import_module(f"capbench.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
