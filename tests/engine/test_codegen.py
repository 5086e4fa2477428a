"""Operations in C: in every lane the results and gradients of torch, or refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from capbench.engine.codegen import program as programs
from capbench.engine.codegen.program import Program, compile_library, lane_type, to_lanes
from capbench.engine.codegen.recording import record
from capbench.engine.codegen.source import LANES, FunctionSource, function_source
from capbench.engine.codegen.values import CannotCompile
from tests.engine.test_every_pair import compiles

Function = Callable[..., Tensor]
PLANE, LINE = (5, 7), (7,)
OPERATIONS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "linear": (F.linear, (PLANE, (3, 7), (3,))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, LINE, w, b), (PLANE, LINE, LINE)),
    "group_norm": (lambda x: F.group_norm(x, 2), ((3, 4, 5),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (PLANE,)),
    "std": (lambda x: x.std(1), (PLANE,)),
    "normalize": (lambda x: F.normalize(x, dim=0), (PLANE,)),
    "softmax of the first axis": (lambda x: x.softmax(0), (PLANE,)),
    "largest of all": (lambda x: x.max() * x, (PLANE,)),
    "elu": (lambda x: F.elu(x, alpha=2), (PLANE,)),
    "relu of infinity": (lambda x: torch.relu(torch.where(x > 0, x, -math.inf)), (PLANE,)),
    "pad and cut": (lambda x: F.pad(x, (1, 0, -2, 0), value=0.5), (PLANE,)),
    "repeat": (lambda x: x.repeat(2, 3), (PLANE,)),
    "clamp": (lambda x, y: torch.clamp(x, y - 1, y), (PLANE, PLANE)),
    "einsum": (lambda x, y, z: torch.einsum("bi,ijk,bk->bj", x, y, z), ((4, 3), (3, 5, 2), (4, 2))),
    "attention": (
        lambda x, *w: functional_call(ATTENTION, dict(zip(ATTENTION_NAMES, w, strict=True)), (x, x, x))[0],
        ((2, 5, 8), (24, 8), (24,), (8, 8), (8,)),
    ),
    "integers": (lambda x: ((x * 9).detach().long() % 5 + (x * 9).detach().long() // -3) * x, (PLANE,)),
    "chosen by a weight": (lambda x: x[:, (x[:, 0].sigmoid() * 7).detach().long()], (PLANE,)),
}
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True)
ATTENTION_NAMES = [name for name, _ in ATTENTION.named_parameters()]
UNSAFE: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "index": (lambda x: torch.arange(7.0)[x.long()], (LINE,)),
    "gather": (lambda x: torch.arange(7.0).gather(0, x.long()), (LINE,)),
    "remainder": (lambda x: (5 % x.long().clamp(0, 6)).float(), (LINE,)),
}


def with_gradients(function: Function, n_inputs: int) -> Callable[..., list[Tensor]]:
    def loss(*tensors: Tensor) -> Tensor:
        result = function(*tensors)
        return (result * (torch.arange(result.numel()).view(result.shape).sin() + 0.3)).sum()

    def both(*tensors: Tensor) -> list[Tensor]:
        return [function(*tensors).clone(), *grad(loss, argnums=tuple(range(n_inputs)))(*tensors)]

    return both


def drawn(shapes: tuple[tuple[int, ...], ...], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def symbol(name: str) -> str:
    return name.replace(" ", "_")


def source(name: str, function: Callable[..., list[Tensor]], *examples: list[Tensor]) -> FunctionSource:
    slots = [len(example[0]) for example in examples]
    return function_source(name, [(n, record(function, own)) for n, own in zip(slots, examples, strict=True)])


@pytest.fixture(scope="module")
def program() -> Program:
    """All of the above as one library."""
    sources = [source("step", lambda x: [2 * x], [torch.zeros(2)])]
    for name, (function, shapes) in OPERATIONS.items():
        sources.append(source(symbol(name), with_gradients(function, len(shapes)), drawn(shapes, 0)))
    for name, (function, shapes) in UNSAFE.items():
        examples = [torch.ones(shape) for shape in shapes]
        sources.append(source(symbol(name), lambda *given, function=function: [function(*given)], examples))
    return compile_library(sources, {}, None)


def run(program: Program, name: str, rows: list[list[Tensor]], like: list[Tensor]) -> list[Tensor]:
    """The results by lane, for inputs by lane."""
    given = [to_lanes(torch.stack(column)) for column in zip(*rows, strict=True)]
    results = [torch.zeros(tensor.numel(), LANES, dtype=lane_type(tensor.dtype)) for tensor in like]
    program.bind(symbol(name), 1, [*given, *results])(1)
    return [result.t().reshape(LANES, *tensor.shape) for result, tensor in zip(results, like, strict=True)]


@compiles
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_and_its_gradient_are_those_of_torch_in_every_lane(name: str, program: Program) -> None:
    function, shapes = OPERATIONS[name]
    rows = [drawn(shapes, seed) for seed in range(LANES)]
    expected = [with_gradients(function, len(shapes))(*row) for row in rows]
    found = run(program, name, rows, expected[0])
    for lane, parts in enumerate(expected):
        for mine, theirs in zip(found, parts, strict=True):
            assert torch.allclose(mine[lane], theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@compiles
@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("wild", [math.nan, math.inf, 9e9, -9e9, 0.0])
def test_a_lane_with_wild_numbers_reads_nothing_beyond_its_arrays(name: str, wild: float, program: Program) -> None:
    """It is idle or has diverged; a process that crashed would take the other lanes with it."""
    function, shapes = UNSAFE[name]
    rows = [[torch.full(shape, float(lane % 6 + 1)) for shape in shapes] for lane in range(LANES)]
    expected = [function(*row) for row in rows]
    rows[3] = [torch.full(shape, wild) for shape in shapes]
    [found] = run(program, name, rows, expected[:1])
    assert all(torch.equal(found[lane], expected[lane]) for lane in range(LANES) if lane != 3)
    assert bool((found[3] >= 0).all() and (found[3] <= 6).all())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.topk(2).values.sum(1), "topk"),
        (lambda x: nn.GRUCell(7, 7)(x, x), "shares memory"),
        (lambda x: ((x.detach().long() * 2654435761) % 7) * x, "may leave 32 bits"),
        (lambda x: x + torch.full((7,), 1 << 40), "beyond 32 bits"),
        (lambda x: x.half().float(), "float16"),
        (lambda x: x[x > 0].sum() * x, "no fixed shape"),
    ],
    ids=["topk", "in place", "hash", "large", "half", "mask"],
)
def test_what_has_no_translation_is_refused_with_the_reason(function: Function, reason: str) -> None:
    with pytest.raises(CannotCompile, match=reason):
        source("refused", with_gradients(function, 1), drawn((PLANE,), 0))


@pytest.mark.parametrize("shape", ["square", "steps"])
def test_sizes_that_grow_otherwise_than_on_a_line_are_refused(shape: str) -> None:
    """Two sizes always lie on a line: memory for a third would be too small."""
    functions: dict[str, Function] = {
        "square": lambda x: torch.tanh(x @ x.t()).sum(1),
        "steps": lambda x: torch.tanh(x[: len(x) // 20 + 1]).sum(1),
    }
    with pytest.raises(CannotCompile, match="depends on the number of facts"):
        source("step", lambda x: [functions[shape](x)], *(torch.ones(n, 3).split(n)[:1] for n in (37, 53, 61)))


def test_a_program_for_another_processor_has_another_name(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(programs, "CPU_INFO", info)
    for text in ("flags : avx2", "flags : avx2 avx512f", "Features : asimd\nCPU part : 0xd0c", "CPU part : 0xd40"):
        info.write_text(f"processor : 0\n{text}\nBogoMIPS : {len(found)}\n")
        programs._processor.cache_clear()
        found.add(programs.program_path(tmp_path, "same"))
        info.write_text(info.read_text() + "cpu MHz : 1\n")
        programs._processor.cache_clear()
        found.add(programs.program_path(tmp_path, "same"))
    programs._processor.cache_clear()
    assert len(found) == 4
