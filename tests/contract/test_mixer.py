"""Mixer and PairScorer: a layer becomes an architecture, with the options that every author gets."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from capbench import Lookup, Mixer, PairScorer, Recall, Relation, UnsupportedSignature

PAIRS, RANGED, LONG = Lookup(7, 2, 5), Lookup(9, 2, 4, ((0, 6), (6, 9))), Lookup(6, 4, 3)
OWN, SHARED = Recall(3, 5, 4), Recall(3, 5, 4, shared_context=True)


class Averages(Mixer):
    """The mean of all positions so far, times a matrix."""

    name: ClassVar[str] = "averages"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        return Average(d_model)


class Average(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d) / math.sqrt(d))
        self.register_buffer("scale", torch.randn(d))

    def forward(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype).unsqueeze(1)
        return (x @ self.W * self.scale).cumsum(dim=1) / count


class FastAverages(Averages):
    """The same with the parts that make it faster."""

    name: ClassVar[str] = "fast_averages"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        return FastAverage(d_model)


class FastAverage(Average):
    def project(self, x: Tensor) -> tuple[Tensor]:
        return (x @ self.W * self.scale,)

    def mix(self, v: Tensor) -> Tensor:
        count = torch.arange(1, v.shape[1] + 1, device=v.device, dtype=v.dtype).unsqueeze(1)
        return v.cumsum(dim=1) / count

    def mix_last(self, v: Tensor) -> Tensor:
        return v.mean(dim=1)


class Products(PairScorer):
    """x_i·x_j after a map."""

    name: ClassVar[str] = "products"

    def scorer(self, d_item: int) -> nn.Module:
        return Product(d_item)


class Product(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d))

    def forward(self, items: Tensor) -> Tensor:
        return items @ self.W @ items.mT


VARIANTS = [
    {},
    {"norm": "rms"},
    {"norm": "layer", "n_layers": 3, "mlp": "gelu"},
    {"residual": False, "mlp": "relu"},
    {"positions": False, "mlp": "swiglu", "norm": "rms"},
    {"read": "mean", "mlp": "bilinear", "n_layers": 2},
]


def built(architecture: Mixer, signature: object, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build(signature).double()


def inputs_of(signature: object) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    if isinstance(signature, Lookup):
        return (signature.grid()[torch.randint(signature.n_combinations, (8,), generator=g)],)
    n = 1 if signature.shared_context else 8
    contexts = torch.rand(n, 3, 5, generator=g, dtype=torch.double)
    return contexts, torch.rand(8, 5, generator=g, dtype=torch.double)


@pytest.mark.parametrize("signature", [PAIRS, RANGED, LONG, OWN, SHARED], ids=repr)
@pytest.mark.parametrize("fields", VARIANTS, ids=repr)
@pytest.mark.parametrize("cls", [Averages, FastAverages])
def test_every_option_trains_every_weight_in_one_stack(cls, fields, signature) -> None:
    modules = [built(cls(d_model=6, d_mlp=7, **fields), signature, seed) for seed in range(3)]
    params, buffers = stack_module_state(modules)
    inputs = inputs_of(signature)
    together = vmap(lambda p, b: functional_call(modules[0], (p, b), inputs))(params, buffers)
    alone = torch.stack([module(*inputs) for module in modules])
    assert together.shape == (3, 8, signature.n_classes)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    alone.square().sum().backward()
    for name, weight in modules[0].named_parameters():
        assert weight.grad.isfinite().all(), name
        assert (weight.grad != 0).any(), name


@pytest.mark.parametrize("signature", [PAIRS, RANGED], ids=repr)
@pytest.mark.parametrize("fields", VARIANTS, ids=repr)
@pytest.mark.parametrize("cls", [Averages, FastAverages])
def test_the_grid_gives_what_each_pair_gives_alone(cls, fields, signature) -> None:
    module = built(cls(d_model=6, d_mlp=7, **fields), signature)
    torch.testing.assert_close(module.forward_grid(), module(signature.grid()), rtol=1e-9, atol=1e-9)
    assert not hasattr(built(cls(), LONG), "forward_grid")


@pytest.mark.parametrize("signature", [PAIRS, LONG, OWN], ids=repr)
@pytest.mark.parametrize("fields", VARIANTS, ids=repr)
def test_the_faster_parts_of_a_layer_change_nothing(fields, signature) -> None:
    plain, fast = (built(cls(d_model=6, d_mlp=7, **fields), signature) for cls in (Averages, FastAverages))
    inputs = inputs_of(signature)
    torch.testing.assert_close(fast(*inputs), plain(*inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("signature", [LONG, Lookup(9, 3, 4, ((0, 4), (3, 6), (6, 9)))], ids=repr)
@pytest.mark.parametrize("fields", VARIANTS, ids=repr)
def test_many_sequences_of_few_tokens_give_what_each_gives_alone(fields, signature) -> None:
    module, grid = built(FastAverages(d_model=6, d_mlp=7, **fields), signature), signature.grid()
    alone = torch.cat([module(few) for few in grid.split(signature.n_tokens)])
    torch.testing.assert_close(module(grid), alone, rtol=1e-9, atol=1e-9)


def test_one_layer_is_the_equation() -> None:
    module = built(Averages(d_model=3, norm="rms", mlp="swiglu", d_mlp=4), Lookup(4, 2, 3))
    block, tokens = module.blocks[0], torch.tensor([[1, 3]])

    def rms(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    x = module.W_E[tokens] + module.P
    y = x[:, 1] + (rms(x).mean(dim=1) @ block.layer.W * block.layer.scale)
    z = rms(y)
    gate = z @ block.mlp.W_gate
    y = y + (gate * gate.sigmoid() * (z @ block.mlp.W_1 + block.mlp.b_1)) @ block.mlp.W_2 + block.mlp.b_2
    torch.testing.assert_close(module(tokens), rms(y) @ module.W_U, rtol=1e-6, atol=1e-6)


def test_a_shared_context_gives_the_same_outputs_as_copies_of_it() -> None:
    module, (contexts, queries) = built(Averages(d_model=6), SHARED), inputs_of(SHARED)
    torch.testing.assert_close(module(contexts, queries), module(contexts.expand(8, -1, -1), queries))


def test_shapes_have_the_count_and_keep_what_is_set() -> None:
    for architecture in (Averages(), Averages(mlp="gelu"), Averages(d_model=8, mlp="swiglu")):
        shapes = architecture.shapes(Lookup(32, 2, 32), 4000)
        counts = [sum(p.numel() for p in shape.build(Lookup(32, 2, 32)).parameters()) for shape in shapes]
        assert counts
        assert all(abs(count - 4000) <= 200 for count in counts)
        assert all(
            getattr(shape, name) == value
            for shape in shapes
            for name, value in architecture
            if name in architecture.model_fields_set
        )


def test_scores_pass_a_learned_scale_and_threshold() -> None:
    module = built(Products(), Relation(6, 4))
    items = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    torch.testing.assert_close(module(items), items @ module.scorer.W @ items.mT - 0.5)
    assert {name for name, _ in module.named_parameters()} == {"scorer.W", "log_scale", "threshold"}


def test_other_signatures_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedSignature, match="averages reads sequences, and Relation tasks give a set of items"):
        Averages().build(Relation(6, 4))
    with pytest.raises(
        UnsupportedSignature, match="products scores pairs of vectors, and Lookup tasks ask for classes"
    ):
        Products().build(PAIRS)
    assert Averages().shapes(Relation(6, 4), 1000) == ()
