"""Lowering: how each operation of a traced graph becomes kernels."""

from __future__ import annotations

from capbench.engine.codegen.indexing import (
    lower_embedding,
    lower_gather,
    lower_index,
    lower_index_put,
    lower_index_select,
    lower_scatter,
    lower_scatter_add,
)
from capbench.engine.codegen.kernels import Handler, Lowered, Lowering
from capbench.engine.codegen.products import lower_matmul
from capbench.engine.codegen.recording import Recorded
from capbench.engine.codegen.reductions import (
    REDUCTIONS,
    lower_best,
    lower_cumsum,
    lower_mean,
    lower_reduction,
    lower_softmax,
)
from capbench.engine.codegen.views import (
    lower_arange,
    lower_cat,
    lower_copy,
    lower_expand,
    lower_flip,
    lower_full,
    lower_ones,
    lower_pad,
    lower_permute,
    lower_same,
    lower_select,
    lower_select_scatter,
    lower_slice,
    lower_slice_scatter,
    lower_split,
    lower_squeeze,
    lower_transpose,
    lower_unsqueeze,
    lower_view,
)

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        (
            "clone",
            "alias",
            "detach",
            "lift_fresh",
            "lift_fresh_copy",
            "conj_physical",
            "_conj",
            "resolve_conj",
            "resolve_neg",
            "contiguous",
        ),
        lower_same,
    ),
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), lower_view),
    **dict.fromkeys(("full", "full_like", "scalar_tensor", "new_full", "zeros", "zeros_like", "new_zeros"), lower_full),
    **dict.fromkeys(("empty", "empty_like", "empty_permuted", "new_empty"), lower_full),
    **dict.fromkeys(("empty_strided", "new_empty_strided", "zero"), lower_full),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lower_ones),
    **{name: lower_reduction(name) for name in REDUCTIONS},
    "copy": lower_copy,
    "permute": lower_permute,
    "transpose": lower_transpose,
    "expand": lower_expand,
    "slice": lower_slice,
    "select": lower_select,
    "split_with_sizes": lower_split,
    "unsqueeze": lower_unsqueeze,
    "squeeze": lower_squeeze,
    "flip": lower_flip,
    "arange": lower_arange,
    "cat": lower_cat,
    "slice_scatter": lower_slice_scatter,
    "select_scatter": lower_select_scatter,
    "constant_pad_nd": lower_pad,
    "mean": lower_mean,
    "max": lower_best(">", ("values", "indices")),
    "min": lower_best("<", ("values", "indices")),
    "argmax": lower_best(">", ("indices",)),
    "argmin": lower_best("<", ("indices",)),
    "_softmax": lower_softmax(is_log=False),
    "_log_softmax": lower_softmax(is_log=True),
    "mm": lower_matmul,
    "bmm": lower_matmul,
    "gather": lower_gather,
    "index": lower_index,
    "_unsafe_index": lower_index,
    "embedding": lower_embedding,
    "index_select": lower_index_select,
    "scatter": lower_scatter,
    "scatter_add": lower_scatter_add,
    "index_put": lower_index_put,
    "_unsafe_index_put": lower_index_put,
    "cumsum": lower_cumsum,
}
"""How each operation is lowered that is not computed element by element."""


def lower(recorded: Recorded) -> Lowered:
    """The kernels of a graph. Raises CannotCompile where an operation has no translation."""
    return Lowering(recorded, HANDLERS).run()
