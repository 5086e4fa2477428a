"""A stack: the weights and problems of many models, one per lane along the leading axis."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from capbench.contract.signatures import Lookup
from capbench.contract.solver import GradientSolver
from capbench.contract.task import Problem
from capbench.engine.checks import (
    checked_loss,
    checked_metrics,
    checked_module,
    checked_outputs,
    checked_problem,
    checked_start,
    is_out_of_memory,
    untouched,
)
from capbench.engine.devices import kept_as
from capbench.engine.torch_private import tree_map
from capbench.engine.trials import Setup, TrialGroup, TrialSpec, seeded

Named = dict[str, Tensor]
SMALL_BATCH = 0.25
"""Share of the grid below which a batch is scored faster input by input."""


class LoopFallback(UserWarning):
    """A module cannot be batched by vmap; its lanes run one after the other."""


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in a lane's flat row of weights."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module's trained parameters."""
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in trained), tuple(p.shape for _, p in trained))

    def flatten(self, module: nn.Module) -> Tensor:
        """A module's trained parameters as one row."""
        params = dict(module.named_parameters())
        return torch.cat([params[name].detach().reshape(-1) for name in self.names])

    def split(self, weights: Tensor) -> Named:
        """Views of (lanes, n_parameters) weights, by name, each (lanes, *shape)."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = torch.split(weights, sizes, dim=1)
        return {n: part.view(-1, *shape) for n, part, shape in zip(self.names, parts, self.shapes, strict=True)}


@dataclass
class Stack:
    """All the tensors of a group in training. Every tensor has a leading axis of lanes."""

    module: nn.Module
    layout: Layout
    weights: Tensor
    fixed: Named
    problem: Problem
    learning_rate: Tensor

    def asking(self, problem: Problem) -> Stack:
        """The stack with another problem per lane."""
        return replace(self, problem=problem)

    def snapshot(self) -> Stack:
        """The stack with weights that later steps do not change."""
        return replace(self, weights=self.weights.clone())

    def moved(self, device: torch.device) -> Stack:
        """The stack on a device; on `meta` it has shapes and no numbers. Its module moves with it."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        return Stack(
            self.module.to(device),
            self.layout,
            move(self.weights),
            {name: move(tensor) for name, tensor in self.fixed.items()},
            tree_map(move, self.problem),
            move(self.learning_rate),
        )

    def kept(self, lanes: Tensor | slice) -> Stack:
        """The stack with only the given lanes: copies for an index, views for a slice."""
        return Stack(
            self.module,
            self.layout,
            self.weights[lanes],
            {name: tensor[lanes] for name, tensor in self.fixed.items()},
            tree_map(lambda tensor: tensor[lanes], self.problem),
            self.learning_rate[lanes],
        )


def make_problem(setup: Setup, trial: TrialSpec, slots: int) -> Problem:
    """A trial's facts, determined by its data seed."""
    generator = torch.Generator().manual_seed(setup.data_seed(trial))
    with setup.task.contained():
        problem = setup.task.plugin.problem(trial.load, slots, generator)
    return checked_problem(problem, setup.task.plugin, slots)


def make_module(setup: Setup, trial: TrialSpec) -> nn.Module:
    """A trial's freshly initialised model, determined by its init seed."""
    with setup.architecture.contained(), seeded(setup.init_seed(trial)):
        module = setup.architecture.plugin.build(setup.task.plugin.signature)
    return checked_module(module, setup.architecture.plugin.name)


def make_start(setup: Setup, trial: TrialSpec, problem: Problem) -> nn.Module:
    """A trial's model before training: freshly initialised, or with the solver's starting weights."""
    module, solver = make_module(setup, trial), setup.solver.plugin
    assert isinstance(solver, GradientSolver)
    if type(solver).start is GradientSolver.start:
        return module
    module = module.to(dtype=kept_as(setup.training.dtype))
    drawn: Problem = tree_map(placed(setup, torch.device("cpu")), problem)
    generator = torch.Generator().manual_seed(setup.init_seed(trial))
    with setup.solver.contained():
        found = solver.start(setup.task.plugin, setup.architecture.plugin, module, drawn, trial.load, generator)
    module.load_state_dict(checked_start(found, module, solver.name), strict=False)
    return module


def placed(setup: Setup, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Moves a tensor to the device, floating-point ones in the trial's precision."""
    dtype = kept_as(setup.training.dtype)
    return lambda tensor: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)


def build_stack(group: TrialGroup, device: torch.device) -> tuple[Stack, list[dict[str, float]]]:
    """Problems and models of a group, each from its own seeds, and the task's examination of each problem."""
    place = placed(group.setup, device)
    drawn = {seed: make_problem(group.setup, trial, group.slots) for seed, trial in _by_data(group)}
    examined = {seed: group.setup.task.plugin.examine(problem) for seed, problem in drawn.items()}
    seeds = [group.setup.data_seed(trial) for trial in group.trials]
    problems = [drawn[seed] for seed in seeds]
    made = {
        seed: make_start(group.setup, trial, drawn[group.setup.data_seed(trial)]) for seed, trial in _by_init(group)
    }
    modules = [made[group.setup.init_seed(trial)] for trial in group.trials]
    layout = Layout.of(modules[0])
    held_fixed = [fixed_tensors(module) for module in modules]
    stack = Stack(
        module=modules[0],  # structure only: all tensors are replaced at call time
        layout=layout,
        weights=place(torch.stack([layout.flatten(module) for module in modules])),
        fixed={name: place(torch.stack([f[name] for f in held_fixed])) for name in held_fixed[0]},
        problem=tree_map(lambda *same: place(torch.stack(same)), *problems),
        learning_rate=place(torch.tensor([[trial.learning_rate or 0.0] for trial in group.trials])),
    )
    return stack, [examined[seed] for seed in seeds]


def _by_data(group: TrialGroup) -> list[tuple[int, TrialSpec]]:
    """One trial for each data set: trials that differ in their learning rate alone share theirs."""
    return list({group.setup.data_seed(trial): trial for trial in group.trials}.items())


def _by_init(group: TrialGroup) -> list[tuple[int, TrialSpec]]:
    """One trial for each start: trials that differ in their learning rate alone share theirs."""
    return list({group.setup.init_seed(trial): trial for trial in group.trials}.items())


def fixed_tensors(module: nn.Module) -> Named:
    """Buffers, and parameters that are not trained."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(module.named_buffers())}


class LaneFunctions:
    """Loss and metrics of one model on one problem, checked at the plugin border."""

    def __init__(self, setup: Setup, stack: Stack) -> None:
        self.task = setup.task.plugin
        self._module = _called(setup, stack)

    def loss(self, weights: Named, fixed: Named, problem: Problem) -> Tensor:
        """What training minimises."""
        return checked_loss(self.task.loss(self._outputs(weights, fixed, problem), problem), self.task)

    def metrics(self, weights: Named, fixed: Named, problem: Problem) -> Named:
        """The metrics by name."""
        return checked_metrics(self.task.metrics(self._outputs(weights, fixed, problem), problem), self.task)

    def _outputs(self, weights: Named, fixed: Named, problem: Problem) -> Tensor:
        prefix = "module." if isinstance(self._module, _GridModule) else ""
        tensors = {prefix + name: tensor for name, tensor in {**weights, **fixed}.items()}
        # Of the kernels of torch's attention, this one alone has a batching rule everywhere and can be compiled.
        with sdpa_kernel(SDPBackend.MATH):
            outputs: Tensor = functional_call(self._module, tensors, problem.inputs)
        if getattr(outputs, "dtype", None) is torch.bfloat16:  # only matrix products are in low precision
            outputs = outputs.float()
        return checked_outputs(outputs, self.task.signature, problem, weights)


class Batched:
    """Loss and metrics of every lane at once: by vmap, or by a loop where a module does not allow it."""

    def __init__(self, setup: Setup, stack: Stack) -> None:
        self._lane = LaneFunctions(setup, stack)
        self._map: Callable[..., Callable[..., object]] = vmap
        task = self._lane.task.name
        try:
            self._try(stack)
        except (RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):  # a smaller group may fit; no need to loop
                raise
            self._map = _loop
            self._try(stack)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            name = setup.architecture.plugin.name
            warnings.warn(f"{name} on {task} trains one model at a time: {reason}", LoopFallback, stacklevel=2)

    @classmethod
    def untried(cls, setup: Setup, stack: Stack) -> Batched:
        """By vmap, without trying it: for stacks on `meta`, made of this one, whose numbers cannot be read."""
        batched = object.__new__(cls)
        batched._lane, batched._map = LaneFunctions(setup, stack), vmap
        return batched

    def _try(self, stack: Stack) -> None:
        """Computes loss and metrics once, to see that they work and change nothing in place."""
        with untouched(stack.problem, stack.weights, f"{self._lane.task.name}, or the module trained on it,"):
            self.losses(stack)
            self.metric_names = tuple(self.metrics(stack))

    @property
    def is_batched(self) -> bool:
        """Whether lanes run together rather than one after the other."""
        return self._map is not _loop

    def losses(self, stack: Stack, weights: Named | None = None) -> Tensor:
        """The loss of each lane, at the stack's weights or at given ones."""
        own = weights or stack.layout.split(stack.weights)
        loss: Tensor = self._map(self._lane.loss)(own, stack.fixed, stack.problem)  # type: ignore[assignment]
        return loss

    @torch.no_grad()
    def metrics(self, stack: Stack) -> Named:
        """The metrics of each lane."""
        own = stack.layout.split(stack.weights)
        metrics: Named = self._map(self._lane.metrics)(own, stack.fixed, stack.problem)  # type: ignore[assignment]
        return metrics


def _called(setup: Setup, stack: Stack) -> nn.Module:
    """The module as lanes call it: through its fast path where all lanes score the whole grid."""
    signature = setup.task.plugin.signature
    if isinstance(signature, Lookup) and _fills_grid(setup, stack.problem):
        return _GridModule(stack.module, signature)
    return stack.module


def _fills_grid(setup: Setup, problem: Problem) -> bool:
    """Whether the problem of every lane is the whole grid of inputs, in the grid's order."""
    signature, tokens = setup.task.plugin.signature, problem.inputs[0]
    if not (setup.has_grid and isinstance(signature, Lookup) and tokens.shape[1] == signature.n_combinations):
        return False
    return bool((tokens == signature.grid().to(tokens.device)).all())


class _GridModule(nn.Module):
    """A module called through its fast path: the logits of the whole grid, from which a batch takes its rows.

    A small batch is scored by the module itself.
    """

    def __init__(self, module: nn.Module, signature: Lookup) -> None:
        super().__init__()
        self.module = module
        self._signature = signature

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens, all of the grid in its order or fewer -> (slots, n_classes) logits."""
        if len(tokens) < SMALL_BATCH * self._signature.n_combinations:
            own: Tensor = self.module(tokens)
            return own
        logits: Tensor = self.module.forward_grid()  # type: ignore[operator]
        if len(tokens) == len(logits):
            return logits
        rows = self._signature.rows(tokens)
        return logits.gather(0, rows.unsqueeze(1).expand(-1, logits.shape[1]))


def _loop(function: Callable[..., object]) -> Callable[..., object]:
    """What vmap does, one lane after the other."""

    def looped(weights: Named, fixed: Named, problem: Problem) -> object:
        n_lanes = len(problem.targets)
        rows = [
            function(*(tree_map(lambda tensor, i=i: tensor[i], part) for part in (weights, fixed, problem)))
            for i in range(n_lanes)
        ]
        return tree_map(lambda *same: torch.stack(same), *rows)

    return looped
