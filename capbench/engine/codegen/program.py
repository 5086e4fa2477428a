"""Programs: functions in C, compiled into one library and called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capbench.documents.files import write_whole
from capbench.engine.codegen.source import LANES, Array, FunctionSource, Size
from capbench.engine.codegen.values import CannotCompile
from capbench.errors import BadSetting

FLAGS = ("-O2", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-ftree-vectorize")
PRELUDE, LOOP = (Path(__file__).with_name(name) for name in ("prelude.h", "loop.h"))
CPU_INFO = Path("/proc/cpuinfo")
PROCESSOR_LINES = ("flags", "Features", "CPU implementer", "CPU part", "isa")
"""Lines of /proc/cpuinfo that say what a processor can do: on x86, ARM and RISC-V."""
DIGEST_BYTES = 32
ALIGNMENT = 64
"""Bytes to which vectors are aligned."""


class ProgramNotKept(UserWarning):
    """A compiled program cannot be written to the folder of programs; the next run compiles it again."""


@cache
def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return next(
        (path for name in (os.environ.get("CXX", "c++"), "g++", "clang++") if (path := shutil.which(name))), None
    )


def program_path(folder: Path, identity: str) -> Path:
    """Where the library of a function is kept, for this machine."""
    machine = [platform.machine(), torch.backends.cpu.get_cpu_capability(), _processor()]
    parts = [identity, torch.__version__, str(LANES), " ".join(FLAGS), _own_code(), *machine]
    return folder / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.so"


@cache
def _own_code() -> str:
    """The code that writes programs: another version of it writes other ones."""
    files = sorted([*Path(__file__).parents[1].rglob("*.py"), PRELUDE, LOOP])  # with what it calls in the engine
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@cache
def _processor() -> str:
    """What `-march=native` compiles for."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in text.splitlines() if line.startswith(PROCESSOR_LINES)}))


class Program:
    """A compiled library of functions of lanes, with the notes it was compiled with."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        described = json.loads(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self._library, "description"))))
        self.notes: dict[str, Any] = described["notes"]
        self._arrays = {name: [_array(row) for row in rows] for name, rows in described["functions"].items()}

    def bind(self, name: str, slots: int, tensors: Sequence[Tensor]) -> BoundFunction:
        """A function with its tensors, inputs first, and memory for up to so many slots."""
        places, n_bytes = allocate(self._arrays[name], slots)
        memory = torch.empty(n_bytes + ALIGNMENT, dtype=torch.uint8)
        return BoundFunction(getattr(self._library, f"lanes_{name}"), tensors, memory, places)

    def n_bytes(self, slots: int) -> int:
        """The memory that all functions take for so many slots."""
        return sum(allocate(arrays, slots)[1] for arrays in self._arrays.values())

    def bind_loop(self, slots: int, tensors: Sequence[Tensor], n_state: int, per_step: Sequence[bool]) -> BoundLoop:
        """The step as a loop that keeps weights and state where they are.

        Tensors are as the step takes them; those `per_step` have a leading axis of steps.
        """
        step = self.bind("step", slots, tensors)
        n_inputs = len(tensors) - 1 - n_state
        kept_in = [0, *range(n_inputs - n_state, n_inputs)]
        return BoundLoop(self._library.repeat_step, step, tensors, kept_in, n_inputs, per_step)

    def call(self, name: str, slots: int, inputs: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """The results of a function for one model, by computing it in all lanes."""
        given = [to_lanes(tensor.unsqueeze(0).expand(LANES, *tensor.shape)) for tensor in inputs]
        results = [torch.zeros(tensor.numel(), LANES, dtype=lane_type(tensor.dtype)) for tensor in like]
        self.bind(name, slots, [*given, *results])(slots)
        return [result[:, 0].view(tensor.shape) for result, tensor in zip(results, like, strict=True)]


def lane_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which lanes hold the elements of a tensor."""
    return torch.int32 if dtype in (torch.int64, torch.bool) else dtype


def to_lanes(stacked: Tensor) -> Tensor:
    """(lanes, …) tensors as (elements, lanes). Raises CannotCompile for integers beyond 32 bits."""
    own = lane_elements(stacked.reshape(len(stacked), -1))
    return own.t().contiguous()


def lane_elements(tensor: Tensor) -> Tensor:
    """A tensor in the type in which lanes hold it: integers in 32 bits, truth values as masks."""
    if tensor.dtype is torch.bool:
        return -tensor.int()
    if tensor.dtype is torch.int64:
        if tensor.numel() and int(tensor.abs().max()) >= 1 << 31:
            raise CannotCompile("integers beyond 32 bits are not compiled")
        return tensor.int()
    return tensor


def _array(row: Sequence[int]) -> Array:
    per_slot, constant, first, last = row
    return Array(Size(per_slot, constant), first, last)


class BoundFunction:
    """A compiled function with its tensors and its memory."""

    def __init__(self, function: Any, tensors: Sequence[Tensor], memory: Tensor, places: Sequence[int]) -> None:
        self._function = function
        self._function.restype = None
        self.kept = [memory, *tensors]
        self.addresses = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
        self.memory = ctypes.c_void_p(memory.data_ptr() + -memory.data_ptr() % ALIGNMENT)
        self.places = (ctypes.c_long * max(1, len(places)))(*places)

    def __call__(self, slots: int) -> None:
        """Computes its results for so many slots."""
        self._function(ctypes.c_long(slots), self.addresses, self.memory, self.places)


class BoundLoop:
    """A compiled step that is repeated, its results becoming its inputs."""

    def __init__(
        self,
        function: Any,
        step: BoundFunction,
        tensors: Sequence[Tensor],
        kept_in: Sequence[int],
        first_result: int,
        per_step: Sequence[bool],
    ) -> None:
        self._function, self._step = function, step
        self._function.restype = None
        n_results = len(kept_in)
        results = tensors[first_result:]
        advances = [t[0].numel() * t.element_size() if moves else 0 for t, moves in zip(tensors, per_step, strict=True)]
        self._kept_in = (ctypes.c_long * n_results)(*kept_in)
        self._sizes = (ctypes.c_long * n_results)(*(t.numel() * t.element_size() for t in results))
        self._advances = (ctypes.c_long * len(tensors))(*advances)
        self._counts = [ctypes.c_long(number) for number in (len(tensors), first_result, n_results)]

    def __call__(self, slots: int, n_steps: int) -> None:
        """Takes so many steps."""
        step = self._step
        self._function(
            ctypes.c_long(slots), ctypes.c_long(n_steps), *self._counts, step.addresses, self._advances, self._kept_in,
            self._sizes, step.memory, step.places,
        )  # fmt: skip


def allocate(arrays: Sequence[Array], slots: int) -> tuple[list[int], int]:
    """A place for each array, such that those in use at the same time do not overlap, and the bytes of all."""
    taken: list[tuple[int, int, Array]] = []
    places = [0] * len(arrays)
    for number in sorted(range(len(arrays)), key=lambda k: -arrays[k].size.at(slots)):
        array = arrays[number]
        size = -(-array.size.at(slots) // ALIGNMENT) * ALIGNMENT
        start = 0
        for other_start, other_end, other in sorted(taken, key=lambda row: row[0]):
            if other.first <= array.last and array.first <= other.last and start < other_end:
                if start + size <= other_start:
                    break
                start = other_end
        places[number] = start
        taken.append((start, start + size, array))
    return places, max((end for _, end, _ in taken), default=0)


def kept_program(path: Path | None) -> Program | None:
    """The program that is kept at a path; None where there is none, or only a part of one."""
    try:
        content = path.read_bytes() if path else b""
        whole = hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]
        return Program(path) if path and whole else None
    except OSError:
        return None


def _keep(library: Path, path: Path) -> None:
    """Keeps a library with its digest at the end, which the system's loader ignores; a later run may do without."""
    content = library.read_bytes()
    try:
        write_whole(path, content + hashlib.sha256(content).digest())
    except BadSetting as error:
        warnings.warn(f"the compiled step is not kept for later runs: {error}", ProgramNotKept, stacklevel=2)


def compile_library(
    sources: Sequence[FunctionSource],
    notes: dict[str, Any],
    path: Path | None,
    check: Callable[[Program], None] = lambda _: None,
) -> Program:
    """Compiles functions into a library with notes, kept at `path` if it passes a check. One of them is the step."""
    rows = {s.name: [[a.size.per_slot, a.size.constant, a.first, a.last] for a in s.arrays] for s in sources}
    description = json.dumps(json.dumps({"functions": rows, "notes": notes}, separators=(",", ":")))
    text = "\n".join(
        [
            f"#define LANES {LANES}",
            PRELUDE.read_text(encoding="utf-8"),
            *(source.text for source in sources),
            LOOP.read_text(encoding="utf-8"),
            f'extern "C" const char description[] = {description};',
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        library = _compile(text, Path(folder))
        program = Program(library)  # the system keeps an open library when its file is deleted
        check(program)
        if path is not None:
            _keep(library, path)
    return program


def _compile(text: str, folder: Path) -> Path:
    program = compiler()
    if program is None:
        raise CannotCompile("there is no C++ compiler (c++, g++ or clang++)")
    source, library = folder / "program.cpp", folder / "program.so"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [program, *FLAGS, "-w", "-shared", "-fPIC", "-o", str(library), str(source), "-lm"],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # Ctrl-C is for capbench: it must not look like an error of the compiler
    )
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CannotCompile(f"the compiler refused the program: {reason}")
    return library
