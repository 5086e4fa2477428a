"""How far a compiled step is from the machine: its operations and memory traffic, and the peaks of one core."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor
from torch.fx import Node

from capbench.engine.codegen.lowering import lower
from capbench.engine.codegen.program import FLAGS, compiler
from capbench.engine.codegen.recording import Recorded, record
from capbench.engine.codegen.source import TORCH_TYPES
from capbench.engine.lane_program import TracedLane
from capbench.engine.trials import Setup

MOVES = {
    "_to_copy", "_unsafe_view", "alias", "arange", "as_strided", "cat", "clone", "constant_pad_nd", "copy",
    "detach", "diagonal", "empty", "empty_like", "expand", "fill", "full", "full_like", "gather", "index",
    "index_put", "lift_fresh_copy", "new_zeros", "ones_like", "permute", "repeat", "scalar_tensor", "scatter",
    "select", "select_scatter", "slice", "slice_scatter", "split_with_sizes", "squeeze", "t", "transpose",
    "unsqueeze", "view", "zeros", "zeros_like",
}  # fmt: skip
"""Operations that compute nothing."""
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "dot", "mv"}
ROUNDS, FLOPS_PER_ROUND = 2_000_000, 10 * 8 * 2
STREAM_FLOATS = 1 << 25
SOURCE = """
typedef float v8 __attribute__((vector_size(32)));
extern "C" float multiply_add(long rounds) {
  v8 a[10], x = {1,1,1,1,1,1,1,1}, y = x * 0.999999f, z = x * 1e-7f;
  for (int k = 0; k < 10; k++) a[k] = x * (float)k;
  for (long i = 0; i < rounds; i++)
    for (int k = 0; k < 10; k++) a[k] = a[k] * y + z;
  v8 s = a[0];
  for (int k = 1; k < 10; k++) s += a[k];
  return s[0];
}
extern "C" void triad(float *__restrict__ a, const float *__restrict__ b, const float *__restrict__ c, long n) {
  for (long i = 0; i < n; i++) a[i] = b[i] + 3.0f * c[i];
}
"""


@dataclass(frozen=True)
class Work:
    """What one step of one model computes and moves."""

    flops: float
    n_bytes: float


@dataclass(frozen=True)
class Peaks:
    """What one core reaches: multiplications and additions in vectors of eight, and a stream through main memory."""

    flops_per_second: float
    bytes_per_second: float


def step_work(setup: Setup, slots: int) -> Work:
    """Counted on the recorded operations: one per element and 2·k per element of a product over k."""
    lane = TracedLane.make(setup, slots)
    recorded = record(lane.step, lane.step_inputs)
    return Work(sum(_flops(node) for node in recorded.graph.nodes if node.op == "call_function"), _traffic(recorded))


def _flops(node: Node) -> float:
    name = getattr(node.target, "_opname", "")
    result = node.meta.get("val")
    if name in MOVES or not isinstance(result, Tensor):
        return 0
    taken = [arg.meta["val"] for arg in node.args if isinstance(arg, Node) and isinstance(arg.meta.get("val"), Tensor)]
    if name in PRODUCTS:
        return 2.0 * result.numel() * taken[-1].shape[-2 if taken[-1].ndim > 1 else 0]
    return max([result.numel(), *(tensor.numel() for tensor in taken)])


def _traffic(recorded: Recorded) -> float:
    """Bytes of the arrays that the kernels read and write, each once per kernel."""
    lowered = lower(recorded)
    placeholders = [node.meta["val"] for node in recorded.graph.nodes if node.op == "placeholder"]
    outputs = next(node for node in recorded.graph.nodes if node.op == "output").args[0]
    sizes = {
        **lowered.sizes,
        **{f"in{k}": tensor.numel() for k, tensor in enumerate(placeholders)},
        **{f"out{k}": node.meta["val"].numel() for k, node in enumerate(outputs)},
    }
    return sum(
        sizes[array] * TORCH_TYPES[lowered.types[array]].itemsize
        for kernel in lowered.kernels
        for array in kernel.arrays
    )


@cache
def peaks() -> Peaks:
    """Measured, the best of five."""
    with TemporaryDirectory() as folder:
        source, path = Path(folder) / "peaks.cpp", Path(folder) / "peaks.so"
        source.write_text(SOURCE, encoding="utf-8")
        subprocess.run([compiler(), *FLAGS, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
        library = ctypes.CDLL(str(path))
    library.multiply_add.restype = ctypes.c_float
    flops = ROUNDS * FLOPS_PER_ROUND / _best_of_five(lambda: library.multiply_add(ctypes.c_long(ROUNDS)))
    arrays = [(ctypes.c_float * STREAM_FLOATS)() for _ in range(3)]
    seconds = _best_of_five(lambda: library.triad(*arrays, ctypes.c_long(STREAM_FLOATS)))
    return Peaks(flops, 3 * 4 * STREAM_FLOATS / seconds)


def _best_of_five(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)
