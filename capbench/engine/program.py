"""Programs: a function of tensors compiled to few kernels; where that is asked, with its very numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

Program = Callable[[list[Tensor]], object]
"""Takes the tensors of a function, empties the list of them, and changes them as the function does."""

ROUNDED = {"add", "sub", "rsub", "mul", "div", "neg", "abs"}
"""Their answer is the number next to the true result: IEEE 754 leaves no choice."""
CHOSEN = {
    "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "relu", "threshold_backward", "amax", "amin", "max",
    "min", "argmax", "argmin", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "logical_and",
    "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not",
}  # fmt: skip
"""Their answer is one of the numbers given, or a truth."""
MOVED = {
    "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "new_full", "new_zeros", "new_ones",
    "scalar_tensor", "arange", "iota", "clone", "copy", "copy_", "_to_copy", "convert_element_type",
    "lift_fresh_copy", "cat", "gather", "index", "index_select", "scatter", "select_backward", "slice_backward",
    "select_scatter", "slice_scatter", "constant_pad_nd",
}  # fmt: skip
"""They make numbers or carry them elsewhere."""
EXACT = ROUNDED | CHOSEN | MOVED
"""Operations with one right answer to the last bit, however they are joined.

Sums, products of matrices and transcendental functions are not among them: their answer depends on the order of
additions or on who wrote the function, and they stay calls of the kernels that the eager step calls.
"""
VIEWS = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice",
    "select", "split", "split_with_sizes", "unbind", "detach", "alias", "diagonal", "getitem",
}  # fmt: skip
COARSE = (torch.bfloat16, torch.float16)
"""Types in which joined operations leave out the rounding between them."""
EXACT_OPTIONS = {
    "fallback_by_default": True,  # what is not marked is called, not compiled
    "use_joint_graph_passes": False,  # they know other ways to the same result, to rounding
    "use_post_grad_passes": False,
    "size_asserts": False,  # at every call; `compiled` checks what it is given
    "alignment_asserts": False,
    "cpp.min_chunk_size": 8192,  # numbers a thread; for fewer it takes longer to wake it
    "cpp.vec_isa_ok": True,  # trying every kind of vectors takes seconds; should one not work, nothing is compiled
}
SAVED_OF_JOINED, SAVED_ELSEWHERE = 0.8, 0.65
"""Share of the time that compiling is taken to save: of operations that are joined, and of a step not on a CPU."""


def compiled(function: Callable[..., None], tensors: Sequence[Tensor], is_exact: bool) -> Program:
    """A function that changes some of its tensors, compiled for tensors of these shapes.

    It is traced and not interpreted, so that no guard is checked at every call. Only what is `EXACT` is joined into
    kernels; or everything, which is quicker and rounds in another order.
    """
    from torch._inductor import config  # takes a second
    from torch._inductor.compile_fx import compile_fx_inner

    if is_exact and not hasattr(config, "fallback_by_default"):
        raise RuntimeError(f"torch {torch.__version__} does not compile chosen operations alone, torch 2.13 does")

    def changing(*given: Tensor) -> tuple[()]:
        function(*given)
        return ()

    copies = [tensor.clone() for tensor in tensors]  # tracing carries the function out
    graph = make_fx(functionalize(changing), _decompositions(is_exact))(*copies)
    if is_exact:
        _mark(graph)
    with config.patch({**EXACT_OPTIONS, **vector_options()} if is_exact else {}), torch.no_grad():
        program: Program = compile_fx_inner(graph, list(tensors))
    strides = [tensor.stride() for tensor in tensors]

    def checked(given: list[Tensor]) -> object:
        assert [tensor.stride() for tensor in given] == strides
        return program(given)

    return checked


def share_saved(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> float:
    """The share of a function's time that compiling is taken to save.

    On a CPU the operations are timed one by one: it is most of the time of those that would be joined.
    """
    if tensors[0].device.type != "cpu":
        return SAVED_ELSEWHERE
    timed = _Timed(make_fx(function)(*tensors))
    with torch.no_grad():
        for _ in range(3):
            timed.seconds.clear()
            timed.run(*tensors)
    joined = sum(seconds for node, seconds in timed.seconds.items() if _is_exact(node))
    return SAVED_OF_JOINED * joined / sum(timed.seconds.values())


class _Timed(Interpreter):
    """Runs a graph and notes what each operation took; views take nothing."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.seconds: dict[Node, float] = {}

    def run_node(self, n: Node) -> object:
        started = time.perf_counter()
        result = super().run_node(n)
        if n.op == "call_function" and _name(n.target) not in VIEWS:
            self.seconds[n] = time.perf_counter() - started
        return result


def vector_options() -> dict[str, object]:
    """On a CPU with vectors of sixteen numbers, to take vectors of eight.

    Where an axis is shorter than a vector, torch 2.13 has the threads share the innermost reduction and start anew for
    each, which takes many times as long as one thread alone. Axes of 8 and 10 are common here; shorter ones still meet
    it.
    """
    return {"cpp.simdlen": 256} if torch.backends.cpu.get_cpu_capability() == "AVX512" else {}


def _decompositions(is_exact: bool) -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """What is traced in terms of simpler operations: all that the compiler likes so, or only the exact."""
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    if not is_exact:
        return dict(table)
    kept = {op: simpler for op, simpler in table.items() if _name(op) in EXACT | VIEWS}
    return {**kept, torch.ops.aten.sigmoid_backward.default: _sigmoid_backward}


def _sigmoid_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """In the order in which the eager kernel multiplies, which rounds coarse types only once."""
    return NotImplemented if gradient.dtype in COARSE else gradient * (1 - output) * output


def _mark(graph: GraphModule) -> None:
    """Tells the compiler what to join, and that other kernels get their inputs laid out as they would eagerly.

    Memory's order decides in which order such a kernel adds.
    """
    joined = {node for node in graph.graph.nodes if node.op == "call_function" and _is_exact(node)}
    for node in graph.graph.nodes:
        if node in joined:
            node.meta.setdefault("custom", {})["compile_with_inductor"] = {}
        elif node.op == "call_function":
            for source in _sources(node, joined):
                source.meta["inductor_realize_to_strides"] = True


def _sources(node: Node, joined: set[Node]) -> Iterator[Node]:
    """The joined operations that lay out what a node reads, views of them included."""
    for given in node.all_input_nodes:
        if given in joined:
            yield given
            if _name(given.target) in VIEWS:
                yield from _sources(given, joined)


def _is_exact(node: Node) -> bool:
    name = _name(node.target)
    tensors = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    if any(isinstance(tensor, Tensor) and tensor.dtype in COARSE for tensor in tensors):
        return False
    is_plain = node.kwargs.keys().isdisjoint({"alpha", "rounding_mode", "reduce"})
    return name in VIEWS or (name in EXACT and is_plain and not (name in ROUNDED and len(node.args) > 2))


def _name(target: object) -> str:
    """An operation's name without library and overload."""
    return target._opname if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "")
