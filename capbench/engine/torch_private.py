"""Every name of torch that the engine uses and torch does not promise to keep, in one place.

No public name serves for any of these. Tested with torch 2.13; `make torch-range` runs the engine's tests with the
oldest and the newest version that pyproject.toml allows.
"""

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "TorchDispatchMode",
    "core_aten_decompositions",
    "get_decompositions",
    "n_writes",
    "storage_id",
    "tree_leaves",
    "tree_map",
]


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that two tensors share exactly if they share memory, also where there is no data (fake tensors)."""
    number: int = storage._cdata
    return number


def n_writes(tensor: Tensor) -> int:
    """How often this tensor has been changed in place."""
    return tensor._version
