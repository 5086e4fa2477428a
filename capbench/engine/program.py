"""Compiled functions of tensors. On a CPU they are kept as shared libraries, which load without torch's compiler.

The only file that uses private parts of torch's compiler; tested with torch 2.13.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from capbench.documents.files import write_whole

Program = Callable[[Sequence[Tensor]], list[Tensor]]
"""A compiled function: takes the tensors that it was compiled for, and returns new ones."""

ENTRY = "inductor_entry_cpp"
"""The name that torch gives to the entry point of a compiled function."""
SMALL_PRODUCT = 16_384
"""Multiplications up to which a product of two matrices is written as a sum, which the compiler fuses with its
neighbours. Measured with torch 2.13 on sequences × mha: 606 µs per lane-step with calls of the matrix library, 157 with
sums; triples, bigrams and rgr hardly change."""
OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,  # one library, which needs no Python to run
    "cpp.vec_isa_ok": True,  # trying out vector widths takes five seconds
    "cpp_cache_precompile_headers": False,  # does not pay for one file
    "fx_graph_cache": False,  # the library is kept instead
    "compile_threads": 1,
}


def program_path(folder: Path, identity: str) -> Path:
    """Where the program of a function is kept, for this machine and this torch."""
    machine = [platform.machine(), torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())]
    versions = [torch.__version__, platform.python_version(), repr(OPTIONS), str(SMALL_PRODUCT)]
    parts = [identity, *machine, *versions]
    return folder / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.so"


def compile_program(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor], path: Path | None) -> Program:
    """Compiles a function with full fusion; on a CPU the program is kept at `path`, if one is given."""
    graph = make_fx(function, decomposition_table={torch.ops.aten.bmm.default: _small_bmm})(
        *(tensor.clone() for tensor in tensors)
    )
    if tensors[0].device.type != "cpu":
        compiled: Callable[..., list[Tensor]] = torch.compile(graph, dynamic=False)
        compiled(*tensors)  # compiles; the results are dropped
        return lambda given: compiled(*given)
    _compute_numbers_once(graph)
    for node in graph.graph.nodes:
        node.meta.clear()  # the shapes of the trace belong to another tracing scope than the compiler's
    constants = _lift_constants(graph)
    with tempfile.TemporaryDirectory() as scratch:
        library = _compile_library(graph, [*tensors, *constants], Path(scratch))
        if path is None:
            return _load_library(library, constants)
        np.savez(library.with_suffix(".npz"), *(tensor.numpy() for tensor in constants))
        write_whole(path.with_suffix(".npz"), library.with_suffix(".npz").read_bytes())
        write_whole(path, library.read_bytes())
    return load_program(path)


def load_program(path: Path) -> Program:
    """The program that is kept at a path."""
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        return _load_library(path, [torch.from_numpy(arrays[name]) for name in arrays.files])


def _load_library(library: Path, constants: Sequence[Tensor]) -> Program:
    # Where the library finds the address of a tensor's data, as torch's own loader tells it.
    address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(address)
    spec = importlib.util.spec_from_file_location(f"{library.stem}.{ENTRY}", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry = getattr(module, ENTRY)
    to_handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
    to_tensors = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(to_tensors(entry(to_handles([*tensors, *constants]))))

    return run


def _compile_library(graph: GraphModule, tensors: list[Tensor], scratch: Path) -> Path:
    """Compiles a graph in a folder of its own; returns the library."""
    from torch._inductor import compile as compile_graph
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

    with temporary_cache_dir(str(scratch)), torch.no_grad():
        compile_graph(graph, [*tensors], options=OPTIONS)
    (library,) = scratch.glob("*/*.so")
    return library


def _compute_numbers_once(graph: GraphModule) -> None:
    """Has 0-d tensors, such as a learning rate's schedule, computed before what uses them, not anew for each element.

    `as_strided` reads memory, so the compiler stores its input. Measured on rgr × mha: 118 µs per lane-step without.
    """
    for node in list(graph.graph.nodes):
        users = [user for user in node.users if _rank(user)]
        if node.op == "call_function" and _rank(node) == 0 and users:
            with graph.graph.inserting_after(node):
                stored = graph.graph.call_function(torch.ops.aten.as_strided.default, (node, (), ()))
            for user in users:
                user.replace_input_with(node, stored)


def _rank(node: Node) -> int | None:
    """The number of axes of a node's tensor; None where it is none."""
    value = node.meta.get("val")
    return value.dim() if isinstance(value, Tensor) else None


def _lift_constants(graph: GraphModule) -> list[Tensor]:
    """Turns the tensors inside a graph into inputs after its other ones; returns them."""
    nodes = [node for node in graph.graph.nodes if node.op == "get_attr"]
    constants: list[Tensor] = []
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in nodes:
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"constant_{len(constants)}")
        constants.append(getattr(graph, str(node.target)).detach())
        node.replace_all_uses_with(last)
        graph.graph.erase_node(node)
    graph.recompile()
    return constants


def _small_bmm(left: Tensor, right: Tensor) -> Any:
    """A batch of products of small matrices, written as a sum; larger ones are left to the matrix library."""
    rows, inner, columns = left.shape[1], left.shape[2], right.shape[2]
    if rows * inner * columns > SMALL_PRODUCT:
        return NotImplemented
    return (left.unsqueeze(-1) * right.unsqueeze(1)).sum(2)
