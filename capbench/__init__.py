"""How many facts can a neural architecture hold, how sure are we, and how close is that to theory?

The names below are all that a plugin needs, and `run`, `compare`, `sweep`, `fit`, `runs` and `load` for notebooks.
Each is imported when it is first used, so that `import capbench` is quick; none of them imports torch before it is
called.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capbench.api import Comparison as Comparison
    from capbench.api import Run as Run
    from capbench.api import Sweep as Sweep
    from capbench.api import compare as compare
    from capbench.api import fit as fit
    from capbench.api import load as load
    from capbench.api import run as run
    from capbench.api import runs as runs
    from capbench.api import sweep as sweep
    from capbench.contract.architecture import Architecture as Architecture
    from capbench.contract.architecture import Heads as Heads
    from capbench.contract.bound import D_K as D_K
    from capbench.contract.bound import FACTS as FACTS
    from capbench.contract.bound import Bound as Bound
    from capbench.contract.bound import BoundValue as BoundValue
    from capbench.contract.bound import CalibrationCell as CalibrationCell
    from capbench.contract.bound import ExactBound as ExactBound
    from capbench.contract.bound import Kind as Kind
    from capbench.contract.bound import Pedigree as Pedigree
    from capbench.contract.hookspecs import hookimpl as hookimpl
    from capbench.contract.mixer import Mixer as Mixer
    from capbench.contract.mixer import PairScorer as PairScorer
    from capbench.contract.plugin import Plugin as Plugin
    from capbench.contract.shapes import find_shapes as find_shapes
    from capbench.contract.signatures import Lookup as Lookup
    from capbench.contract.signatures import Recall as Recall
    from capbench.contract.signatures import Relation as Relation
    from capbench.contract.signatures import Signature as Signature
    from capbench.contract.solver import ConstructiveSolver as ConstructiveSolver
    from capbench.contract.solver import GradientSolver as GradientSolver
    from capbench.contract.solver import Solver as Solver
    from capbench.contract.task import Criterion as Criterion
    from capbench.contract.task import Facts as Facts
    from capbench.contract.task import Problem as Problem
    from capbench.contract.task import Recipe as Recipe
    from capbench.contract.task import Task as Task
    from capbench.errors import CannotConstruct as CannotConstruct
    from capbench.errors import CapbenchError as CapbenchError
    from capbench.errors import LoadOutOfRange as LoadOutOfRange
    from capbench.errors import NotApplicable as NotApplicable
    from capbench.errors import UnsupportedSignature as UnsupportedSignature

__version__ = "0.1.0"

_HOME = {
    "api": ("Comparison", "Run", "Sweep", "compare", "fit", "load", "run", "runs", "sweep"),
    "contract.architecture": ("Architecture", "Heads"),
    "contract.bound": ("D_K", "FACTS", "Bound", "BoundValue", "CalibrationCell", "ExactBound", "Kind", "Pedigree"),
    "contract.hookspecs": ("hookimpl",),
    "contract.mixer": ("Mixer", "PairScorer"),
    "contract.plugin": ("Plugin",),
    "contract.shapes": ("find_shapes",),
    "contract.signatures": ("Lookup", "Recall", "Relation", "Signature"),
    "contract.solver": ("ConstructiveSolver", "GradientSolver", "Solver"),
    "contract.task": ("Criterion", "Facts", "Problem", "Recipe", "Task"),
    "errors": ("CannotConstruct", "CapbenchError", "LoadOutOfRange", "NotApplicable", "UnsupportedSignature"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'capbench' has no attribute {name!r}")
    return getattr(import_module(f"capbench.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
