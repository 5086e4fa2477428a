"""Products of matrices, by tiles of elements that are summed in registers."""

from __future__ import annotations

from torch.fx import Node

from capbench.engine.codegen.kernels import (
    Arguments,
    Lowering,
    dropped,
    loop_heads,
    new_value,
    place,
    storage_of,
    strided,
    traced_tensor,
)
from capbench.engine.codegen.values import Body, Index, Value

TILE_ROWS, TILE_COLUMNS = 4, 2
"""Elements of a matrix product that are summed at once: 8 sums and 6 loads fit the 16 vector registers of x86."""


def lower_matmul(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """The product of two matrices, or of two batches of matrices."""
    left = lowering.materialised(a["self"])
    right = lowering.materialised(a["mat2"])
    if len(left.shape) == 2:
        left, right = (
            strided(v, (1, *v.shape), (0, *storage_of(v).strides), storage_of(v).offset) for v in (left, right)
        )
    shape = (*left.shape[:2], right.shape[2])
    result = new_value(lowering, shape, left.dtype)
    lowering.emit(_matmul_lines(left, right, result))
    if len(traced_tensor(node).shape) == 2:
        return dropped(result, [0])
    return result


def _matmul_lines(left: Value, right: Value, result: Value) -> list[str]:
    """Products by tiles: rows and columns that do not fill one are done one by one."""
    n_batch, n_rows, n_columns = result.shape
    batch, heads = loop_heads((n_batch,), "i")
    lines = [*heads, "long r = 0;"]
    for n_tile_rows in (TILE_ROWS, 1):
        if n_tile_rows > 1 and n_rows < n_tile_rows:
            continue
        if n_tile_rows == 1 and n_rows % TILE_ROWS == 0 and n_rows >= TILE_ROWS:
            continue
        lines += [f"for (; r + {n_tile_rows} <= {n_rows}; r += {n_tile_rows}) {{", "long s = 0;"]
        for n_tile_columns in (TILE_COLUMNS, 1):
            if n_tile_columns > 1 and n_columns < n_tile_columns:
                continue
            if n_tile_columns == 1 and n_columns % TILE_COLUMNS == 0 and n_columns >= TILE_COLUMNS:
                continue
            lines.append(f"for (; s + {n_tile_columns} <= {n_columns}; s += {n_tile_columns}) {{")
            lines += _tile_lines(left, right, result, batch[0], n_tile_rows, n_tile_columns)
            lines.append("}")
        lines.append("}")
    return [*lines, "}" * len(heads)]


def _tile_lines(
    left: Value, right: Value, result: Value, batch: Index, n_tile_rows: int, n_tile_columns: int
) -> list[str]:
    tile = [(row, column) for row in range(n_tile_rows) for column in range(n_tile_columns)]
    rows = [Index(row, {"r": 1}) for row in range(n_tile_rows)]
    columns = [Index(column, {"s": 1}) for column in range(n_tile_columns)]
    inner = Index(0, {"k": 1})
    body = Body()
    lefts = [left.load(body, [batch, row, inner]) for row in rows]
    rights = [right.load(body, [batch, inner, column]) for column in columns]
    strides, array = storage_of(result).strides, storage_of(result).array
    return [
        *(f"{result.c_type} a{row}{column} = {{}};" for row, column in tile),
        f"for (long k = 0; k < {left.shape[2]}; k++) {{",
        *body.lines,
        *(f"a{row}{column} += {lefts[row]} * {rights[column]};" for row, column in tile),
        "}",
        *(f"{array}[{place([batch, rows[row], columns[column]], strides)}] = a{row}{column};" for row, column in tile),
    ]
