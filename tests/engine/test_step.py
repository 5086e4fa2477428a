"""Compiled lanes: they agree with the eager step to rounding; where compiling fails, training goes on eagerly."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capbench import Architecture
from capbench.documents.result import Trial, TrialStatus
from capbench.engine.checks import is_out_of_memory
from capbench.engine.codegen import program as codegen_program
from capbench.engine.codegen.program import ProgramNotKept
from capbench.engine.cost import Cost
from capbench.engine.lane_program import CompileFailed, _identity, _path, prepare_program
from capbench.engine.stack import Batched, LoopFallback, build_stack
from capbench.engine.step import Step
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.bilinear import Bilinear
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from tests.engine.test_every_pair import compiles, distance
from tests.engine.test_train import Made

CPU = torch.device("cpu")
SMALL = Rgr(n_items=24, d_item=8)
Ended = dict[TrialSpec, tuple[Trial, dict[str, Tensor]]]


def make_pair(
    steps: int = 50,
    dtype: str = "float32",
    architecture: Architecture | None = None,
    solver: Adam | None = None,
    stops_early: bool = False,
) -> Setup:
    plugins = (SMALL, architecture or Bilinear(), solver or Adam())
    own = (Configured(plugin, Provenance("t", "t", "0", "t"), "-") for plugin in plugins)
    return Setup(*own, Training(SMALL.criterion, steps, dtype, stops_early=stops_early))


def specs(n_trials: int, load: int = 60) -> list[TrialSpec]:
    return [TrialSpec(load, seed, 0.2) for seed in range(n_trials)]


def group_of(setup: Setup, trials: Iterable[TrialSpec], is_compiled: bool = True) -> TrialGroup:
    return TrialGroup(setup, SMALL.max_load, tuple(trials), is_compiled)


def train(setup: Setup, trials: Iterable[TrialSpec], is_compiled: bool = True) -> tuple[Ended, Cost]:
    ended: Ended = {}

    def keep(trial: Trial, weights: dict[str, Tensor]) -> None:
        ended[TrialSpec(trial.load, trial.seed, trial.learning_rate)] = (trial, weights)

    cost = train_group(group_of(setup, trials, is_compiled), CPU, lambda _: None, lambda *_: None, on_weights=keep)
    return ended, cost


def farthest(some: Ended, others: Ended) -> float:
    """The largest relative difference of a parameter of a trial of `some`."""
    return max(distance(weights, others[spec][1]) for spec, (_, weights) in some.items())


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[object, object]:
    """The compiled steps of a process that has none yet."""
    empty: dict[object, object] = {}
    monkeypatch.setattr("capbench.engine.lane_program._programs", empty)
    monkeypatch.setattr("capbench.engine.lane_program._folder", None)
    return empty


def refuse(error: Exception) -> Callable[..., object]:
    def raise_it(*_: object, **__: object) -> object:
        raise error

    return raise_it


@compiles
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-12)])
def test_in_every_precision_a_compiled_step_agrees_with_the_eager_one(dtype: str, tolerance: float) -> None:
    eager, cost = train(make_pair(dtype=dtype), specs(4), is_compiled=False)
    compiled, compiled_cost = train(make_pair(dtype=dtype), specs(4))
    assert (cost.compile_seconds, cost.compiled_lane_steps) == (0, 0)
    assert compiled_cost.compiled_lane_steps == compiled_cost.lane_steps == 4 * 50
    assert farthest(eager, compiled) < tolerance


@compiles
@pytest.mark.parametrize("architecture", [Bilinear(), Mha()], ids=lambda architecture: architecture.name)
def test_a_compiled_trial_does_not_depend_on_its_group(architecture: Architecture) -> None:
    setup = make_pair(architecture=architecture)
    together, _ = train(setup, specs(21))
    for spec in (specs(21)[i] for i in (0, 7, 8, 13, 20)):
        alone, _ = train(setup, [spec])
        assert alone[spec][0] == together[spec][0].model_copy(update={"metrics": alone[spec][0].metrics})
        assert alone[spec][0].metrics == pytest.approx(together[spec][0].metrics, rel=1e-6)
        assert farthest(alone, together) < 1e-6


@compiles
def test_a_compiled_lane_that_diverges_does_not_affect_its_neighbours() -> None:
    calm, wild = specs(10), TrialSpec(60, 999, 1e38)
    without, _ = train(make_pair(), calm)
    beside, _ = train(make_pair(), [*calm[:3], wild, *calm[3:]])
    assert beside.pop(wild)[0].status is TrialStatus.DIVERGED
    assert all(torch.isfinite(w).all() for _, weights in beside.values() for w in weights.values())
    assert beside.keys() == without.keys()
    assert farthest(without, beside) < 1e-6


NEAR = [TrialSpec(load, seed, 0.2) for load in (60, 80, 100, 120, 140, 160) for seed in range(40)]
EASY = [TrialSpec(4, seed, 0.2) for seed in range(20)]
HOPELESS = [TrialSpec(140, seed, 1e-4) for seed in range(20)]


@compiles
def test_compiled_and_eager_agree_which_trials_hold() -> None:
    """Of the 240 trials near the threshold 238 agree (torch 2.13).

    Eager training from weights that differ in their last bit agrees on 239. Whether a trial that does not hold ends as
    plateau or not_held depends on rounding more often (231 and 229 agree), so only held trials are compared.
    """
    setup = make_pair(300, architecture=Mha(), stops_early=True)
    (eager, _), (compiled, _) = (train(setup, [*NEAR, *EASY, *HOPELESS], is_compiled) for is_compiled in (False, True))

    def holds(ended: Ended, trials: list[TrialSpec]) -> list[bool]:
        return [ended[spec][0].status is TrialStatus.HELD for spec in trials]

    assert all(trial.compiled for trial, _ in compiled.values())
    assert all(holds(eager, EASY) + holds(compiled, EASY))
    assert not any(holds(eager, HOPELESS) + holds(compiled, HOPELESS))
    near = list(zip(holds(eager, NEAR), holds(compiled, NEAR), strict=True))
    assert 0.3 < sum(held for held, _ in near) / len(near) < 0.7  # the threshold is among them
    assert sum(a == b for a, b in near) >= 0.97 * len(near)


@compiles
def test_a_step_is_compiled_once_per_process_and_shape(programs: dict[object, object]) -> None:
    first, cost = train(make_pair(), specs(4))
    again, cost_again = train(make_pair(), [*specs(12), TrialSpec(90, 3, 0.1)])
    assert cost.compile_seconds > 100 * cost_again.compile_seconds
    assert cost_again.compiled_lane_steps == cost_again.lane_steps
    assert len(programs) == 1
    assert farthest(first, again) < 1e-6


@compiles
def test_another_shape_is_another_program(programs: dict[object, object]) -> None:
    for _ in range(2):
        train(make_pair(25), specs(2))
        train(make_pair(25, architecture=Mha()), specs(2))
        train(make_pair(25, dtype="float64"), specs(2))
    assert len(programs) == 3


@compiles
def test_a_step_compiled_ahead_is_the_one_that_training_uses(programs: dict[object, object]) -> None:
    program = prepare_program(group_of(make_pair(25), specs(1)), Cost())
    assert prepare_program(group_of(make_pair(400), specs(3)), Cost()) is program  # the number of steps is data
    _, cost = train(make_pair(25), specs(20, load=90))
    assert (cost.compiled_lane_steps, len(programs)) == (20 * 25, 1)


@compiles
def test_lanes_are_refilled_and_every_trial_is_reported_once() -> None:
    setup = make_pair(300, architecture=Mha(), stops_early=True)
    trials = [*(TrialSpec(2, seed, 0.2) for seed in range(14)), *(TrialSpec(140, seed, 1e-4) for seed in range(5))]
    reported: list[Trial] = []
    alive: list[int] = []
    cost = train_group(group_of(setup, trials), CPU, reported.extend, lambda _, n_alive: alive.append(n_alive))
    assert sorted(trial.key for trial in reported) == sorted(setup.key(spec) for spec in trials)
    assert all(trial.compiled for trial in reported)
    assert alive == sorted(alive, reverse=True)
    assert (max(alive) <= len(trials), alive[-1]) == (True, 0)
    assert cost.lane_steps == sum(trial.steps for trial in reported)


@compiles
def test_a_trial_whose_steps_are_no_multiple_of_the_evaluations_does_not_disturb_its_neighbours() -> None:
    setup = make_pair(60, architecture=Mha(), stops_early=True)
    trials = [TrialSpec(2 + 20 * (seed % 3), seed, 0.2) for seed in range(20)]
    together, _ = train(setup, trials)
    for spec in trials[:6]:
        alone, _ = train(setup, [spec])
        assert alone[spec][0] == together[spec][0]


@compiles
@pytest.mark.filterwarnings("ignore")
def test_torch_compiles_the_step_of_a_stack_too() -> None:
    """What GPUs use, where the lanes of a CPU do not run."""
    (eager, _), (compiled, step) = (take_steps(is_compiled) for is_compiled in (False, True))
    assert step.is_compiled
    assert torch.allclose(eager, compiled, rtol=1e-4, atol=1e-5)


def take_steps(is_compiled: bool, n_lanes: int = 4) -> tuple[Tensor, Step]:
    """The weights of a stack after three steps, and what took them."""
    setup = make_pair()
    stack, _ = build_stack(group_of(setup, specs(n_lanes), is_compiled=False), CPU)
    step, state = Step(Batched(setup, stack), setup, is_compiled), setup.solver.plugin.init(stack.weights)
    step(stack, state, [torch.zeros((), dtype=torch.float64)] * 3)
    return stack.weights, step


@pytest.mark.parametrize(
    ("compiled", "reason"),
    [
        (refuse(RuntimeError("no Triton here\nmore")), "no Triton here"),
        (lambda *_: None, "the compiled step differs from the eager one by 100.0%"),
    ],
    ids=["it fails", "it computes something else"],
)
def test_where_torch_does_not_compile_a_step_it_stays_eager(
    compiled: Callable[..., object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, _ = take_steps(False)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    with pytest.warns(CompileFailed, match=reason):
        weights, step = take_steps(True)
    assert not step.is_compiled
    assert torch.equal(weights, eager)
    cost = Cost({"steps": 100.0})
    step.move_cost(cost)
    assert cost.eager_reasons == {reason}
    assert cost.phases["steps"] + cost.compile_seconds == pytest.approx(100)


def test_memory_that_runs_out_in_torchs_compiler_makes_no_step_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse(RuntimeError("CUDA error: out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        take_steps(True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torch_compiles_more_steps_than_its_limit_of_eight_for_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda take, **options: whole(take, backend="eager", **options))
    assert all(take_steps(True, n_lanes)[1].is_compiled for n_lanes in range(2, 12))


@pytest.mark.usefixtures("programs")
def test_where_compiling_fails_training_goes_on_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capbench.engine.codegen.program.compiler", lambda: None)
    with pytest.warns(CompileFailed) as found:
        fallen_back, cost = train(make_pair(), specs(20))
    assert [str(warning.message) for warning in found] == [
        "the step could not be compiled and runs eagerly: there is no C++ compiler (c++, g++ or clang++)"
    ]
    assert cost.compiled_lane_steps == 0
    assert cost.eager_reasons == {"there is no C++ compiler (c++, g++ or clang++)"}
    assert not any(trial.compiled for trial, _ in fallen_back.values())
    eager, _ = train(make_pair(), specs(20), is_compiled=False)
    assert farthest(eager, fallen_back) == 0


@pytest.mark.usefixtures("programs")
def test_what_trains_eagerly_instead_keeps_to_the_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    stack = build_stack
    monkeypatch.setattr("capbench.engine.codegen.program.compiler", lambda: None)
    monkeypatch.setattr("capbench.engine.train.lanes_that_fit", lambda *_: 5)
    monkeypatch.setattr("capbench.engine.train.build_stack", lambda g, d: (sizes.append(len(g.trials)), stack(g, d))[1])
    with pytest.warns(CompileFailed):
        ended, _ = train(make_pair(25), specs(12))
    assert (sizes, len(ended)) == ([5, 5, 2], 12)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    "error", [MemoryError("a large array"), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=repr
)
def test_where_memory_runs_out_in_compiling_the_error_propagates(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capbench.engine.lane_program.compile_library", refuse(error))
    with pytest.raises((MemoryError, RuntimeError), match=str(error)) as found:
        train(make_pair(), specs(3))
    assert is_out_of_memory(found.value)


@pytest.mark.usefixtures("programs")
def test_a_program_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from capbench.engine.codegen import elementwise

    monkeypatch.setitem(elementwise.FRACTIONS, "exp", "v_exp({0}) * all_{t}(1.2f)")
    with pytest.warns(CompileFailed, match="differs from the eager one"):
        ended, _ = train(make_pair(), specs(3))
    assert not any(trial.compiled for trial, _ in ended.values())


class Rebinding(Adam):
    """Makes new tensors of its state, which the contract does not allow and an eager step bears."""

    def update(self, weights, gradient, state, learning_rate, step, steps) -> None:
        super().update(weights, gradient, state, learning_rate, step, steps)
        state["mean"] = state["mean"].clone()


class Adding(Adam):
    """Adds to its state as it goes."""

    def update(self, weights, gradient, state, learning_rate, step, steps) -> None:
        super().update(weights, gradient, state, learning_rate, step, steps)
        state.setdefault("count", torch.zeros(len(weights))).add_(1)


@compiles
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("solver", [Rebinding(), Adding()], ids=lambda solver: type(solver).__name__)
def test_a_solver_that_makes_new_tensors_of_its_state_is_not_compiled(solver: Adam) -> None:
    plain, _ = train(make_pair(), specs(3), is_compiled=False)
    with pytest.warns(CompileFailed, match="adam makes new tensors of its state"):
        ended, cost = train(make_pair(solver=solver), specs(3))
    assert cost.compiled_lane_steps == 0
    assert not any(trial.compiled for trial, _ in ended.values())
    assert farthest(plain, ended) == 0


@compiles
def test_a_module_that_branches_on_values_is_not_compiled(programs: dict[object, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopFallback)
        with pytest.warns(CompileFailed, match="depend on the values of tensors"):
            ended, _ = train(make_pair(25, architecture=Made(branching=True)), specs(3))
    assert not any(trial.compiled for trial, _ in ended.values())
    assert not programs


@compiles
def test_a_kept_program_is_loaded_by_later_runs_without_the_compiler(
    programs: dict[object, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capbench.engine.lane_program._folder", tmp_path)
    compiled, _ = train(make_pair(), specs(4))
    programs.clear()
    monkeypatch.setattr("capbench.engine.codegen.program.compiler", lambda: None)
    loaded, cost = train(make_pair(), specs(4))
    assert cost.compiled_lane_steps == cost.lane_steps
    assert farthest(compiled, loaded) == 0


@compiles
@pytest.mark.parametrize(
    "damage", [lambda b: b[:5000], lambda b: b"", lambda b: b[:-1], lambda b: b[:9000] + b"x" + b[9001:]]
)
def test_a_damaged_program_is_compiled_again(
    damage: Callable[[bytes], bytes], programs: dict[object, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capbench.engine.lane_program._folder", tmp_path)
    prepare_program(group_of(make_pair(25), specs(1)), Cost())
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    path.unlink()  # the library is open: its pages must not change
    path.write_bytes(damage(whole))
    programs.clear()
    _, cost = train(make_pair(25), specs(4))
    assert cost.compiled_lane_steps == cost.lane_steps
    assert path.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1


@compiles
@pytest.mark.usefixtures("programs")
def test_where_programs_cannot_be_kept_the_step_is_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "compiled"
    folder.write_text("no folder")
    monkeypatch.setattr("capbench.engine.lane_program._folder", folder)
    with pytest.warns(ProgramNotKept, match="is not kept for later runs"):
        _, cost = train(make_pair(25), specs(4))
    assert cost.compiled_lane_steps == cost.lane_steps


def test_a_kept_program_serves_only_what_it_was_compiled_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capbench.engine.lane_program._folder", tmp_path)

    def kept(setup: Setup, slots: int = SMALL.max_load) -> Path | None:
        return _path(_identity(TrialGroup(setup, slots, tuple(specs(1))), for_any=False))

    same = kept(make_pair(50))
    assert kept(make_pair(100, stops_early=True)) == same
    others = [
        kept(make_pair(dtype="float64")), kept(make_pair(architecture=Mha())), kept(make_pair(solver=Adam(beta1=0.5))),
        kept(make_pair(), slots=64),
    ]  # fmt: skip
    monkeypatch.setattr("capbench.engine.codegen.program.FLAGS", ("-O0",))
    assert same not in [*others, kept(make_pair())]


def test_the_number_of_threads_changes_weights_hardly() -> None:
    setup, threads, found = make_pair(architecture=Mha()), torch.get_num_threads(), []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            found.append(train(setup, specs(4), is_compiled=False)[0])
    finally:
        torch.set_num_threads(threads)
    assert farthest(*found) < 1e-4


def test_products_in_bfloat16_are_coarser_and_weights_stay_float32() -> None:
    exact, _ = train(make_pair(), specs(4), is_compiled=False)
    coarse, _ = train(make_pair(dtype="bfloat16"), specs(4), is_compiled=False)
    assert {w.dtype for _, weights in coarse.values() for w in weights.values()} == {torch.float32}
    assert 1e-6 < farthest(exact, coarse) < 0.5


def test_the_compiler_does_not_get_the_ctrl_c_of_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends it to the whole process group; a compiler that dies of it looks like one that fails."""
    script = tmp_path / "c++"
    script.write_text(
        f"#!{sys.executable}\nimport os\nopen({str(tmp_path / 'group')!r}, 'w').write(str(os.getpgid(0)))\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(codegen_program, "compiler", lambda: str(script))
    codegen_program._compile("", tmp_path)
    assert int((tmp_path / "group").read_text()) != os.getpgid(0)
