"""Every architecture: its outputs, its number of weights, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch.func import functional_call, stack_module_state, vmap

from capbench import Architecture, Heads, Lookup, Problem, Recall, Relation, UnsupportedSignature
from capbench_plugins.aot import Aot, attend_pairs
from capbench_plugins.attention import attend
from capbench_plugins.bilinear import Bilinear
from capbench_plugins.gqa import Gqa
from capbench_plugins.headsplit import HeadSplit
from capbench_plugins.linear_attention import LinearAttention
from capbench_plugins.mha import Mha
from capbench_plugins.mlp import Mlp
from capbench_plugins.published_aot import PublishedAot
from capbench_plugins.transformer import Transformer
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences

PAIRS = Lookup(7, 2, 5)
RANGED = Lookup(9, 2, 4, ((0, 6), (6, 9)))
LONG = Lookup(6, 4, 3)
OWN = Recall(3, 5, 4)
SHARED = Recall(3, 5, 4, shared_context=True)
ITEMS = Relation(6, 4)

SMALL = {"d_model": 6, "n_heads": 2, "d_qk": 3, "d_vo": 4}
LOOKUPS = [
    Mha(**SMALL),
    Aot(**SMALL),
    Aot(**SMALL, positions=False),
    Aot(d_model=3, n_heads=5, d_qk=2, d_vo=4),
    Aot(d_model=6, n_heads=2, d_qk=3, d_vo=3, shared_maps=True),
    Transformer(**SMALL, d_mlp=7),
    Mlp(d_model=6, d_mlp=7),
    Mlp(d_model=6, d_mlp=7, n_layers=3),
    HeadSplit(d_model=6, n_heads=2, d_qk_total=6, d_vo_total=8),
    Gqa(**SMALL, n_kv_heads=1),
    LinearAttention(**SMALL),
    Bilinear(d_model=6),
]
PUBLISHED = PublishedAot(d_model=6, n_heads=2, d_head=3)
DEEP_PUBLISHED = PublishedAot(d_model=6, n_heads=2, d_head=6, n_layers=3)
DEEP = Aot(**SMALL, n_layers=3)
DEEP_SHARED = Aot(d_model=6, n_heads=2, d_qk=3, d_vo=3, n_layers=3, shared_maps=True)
DEEP_MLP = Transformer(**SMALL, d_mlp=7, n_layers=3)
RECALLS = [Mha(**SMALL), Mlp(d_mlp=7), HeadSplit(n_heads=2), Gqa(**SMALL, n_kv_heads=1), LinearAttention(**SMALL)]
RELATIONS = [
    *(Mha(**SMALL, readout=readout) for readout in ("max", "softmax", "routed")),
    Mlp(d_mlp=7),
    HeadSplit(n_heads=2),
    Gqa(**SMALL, n_kv_heads=1),
    Bilinear(),
]
BUILT = [
    *((a, s) for a in LOOKUPS for s in (PAIRS, RANGED)),
    *((a, LONG) for a in LOOKUPS),
    *((a, s) for a in (PUBLISHED, DEEP_PUBLISHED) for s in (PAIRS, RANGED, LONG)),
    *((a, s) for a in (DEEP, DEEP_SHARED, DEEP_MLP) for s in (PAIRS, LONG)),
    *((a, s) for a in RECALLS for s in (OWN, SHARED)),
    *((a, ITEMS) for a in RELATIONS),
]


def label(value: object) -> str:
    if isinstance(value, Architecture):
        return "-".join([value.name, *(f"{k}={v}" for k, v in value if isinstance(v, bool | str))])
    return repr(value)


def inputs_of(signature: object, slots: int = 8, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    if isinstance(signature, Lookup):
        return (signature.grid()[torch.randint(signature.n_combinations, (slots,), generator=g)],)
    if isinstance(signature, Recall):
        n = 1 if signature.shared_context else slots
        contexts = torch.rand(n, signature.n_context, signature.d_input, generator=g, dtype=dtype)
        return contexts, torch.rand(slots, signature.d_input, generator=g, dtype=dtype)
    return (torch.randn(signature.n_items, signature.d_item, generator=g, dtype=dtype),)


def built(architecture: Architecture, signature: object, seed: int = 0) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build(signature)


def count(architecture: Architecture, signature: object) -> int:
    return sum(p.numel() for p in architecture.build(signature).parameters())


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_have_the_shape_and_precision_of_the_signature(architecture, signature, dtype):
    outputs = built(architecture, signature).to(dtype)(*inputs_of(signature, 8, dtype))
    expected = (6, 6) if signature is ITEMS else (8, signature.n_classes)
    assert outputs.shape == expected
    assert outputs.dtype == dtype
    assert outputs.isfinite().all()
    assert outputs.std() > 0


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
def test_every_weight_gets_a_finite_gradient(architecture, signature):
    module = built(architecture, signature)
    outputs = module(*inputs_of(signature, 64))
    outputs.square().sum().backward()
    for name, weight in module.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert (weight.grad != 0).any(), name


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
def test_models_stacked_by_vmap_give_the_outputs_of_each_alone(architecture, signature):
    modules = [built(architecture, signature, seed).double() for seed in range(3)]
    inputs = inputs_of(signature, 8, torch.float64)
    params, buffers = stack_module_state(modules)
    together = vmap(lambda p, b: functional_call(modules[0], (p, b), inputs))(params, buffers)
    alone = torch.stack([module(*inputs) for module in modules])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
def test_all_tensors_move_to_the_device(architecture, signature):
    module = architecture.build(signature).to("meta")
    assert module(*(tensor.to("meta") for tensor in inputs_of(signature))).is_meta
    if hasattr(module, "forward_grid"):
        assert module.forward_grid().is_meta


@pytest.mark.parametrize("architecture", LOOKUPS, ids=label)
@pytest.mark.parametrize("signature", [PAIRS, RANGED, Lookup(1, 2, 3), Lookup(30, 2, 17)], ids=label)
def test_the_grid_path_gives_the_same_outputs_as_each_pair_alone(architecture, signature):
    module = built(architecture, signature)
    at_once = module.forward_grid()
    assert at_once.shape == (signature.n_combinations, signature.n_classes)
    torch.testing.assert_close(at_once, module(signature.grid()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", LOOKUPS, ids=label)
def test_the_grid_path_is_exact_where_attention_is_sharp(architecture):
    module = built(architecture, RANGED).double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(3)
    torch.testing.assert_close(module.forward_grid(), module(RANGED.grid()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("architecture", LOOKUPS, ids=label)
def test_the_grid_path_has_the_same_gradients_under_vmap(architecture):
    modules = [built(architecture, RANGED, seed).double() for seed in range(2)]
    params, buffers = stack_module_state(modules)
    tokens, name = RANGED.grid(), "W" if architecture.name == "bilinear" else "W_E"

    def on_grid(p, b):
        return functional_call(Grid(modules[0]), {f"module.{n}": t for n, t in {**p, **b}.items()}, ())

    slow = vmap(lambda p, b: functional_call(modules[0], (p, b), (tokens,)))(params, buffers)
    quick = vmap(on_grid)(params, buffers)
    slow_gradient, quick_gradient = (torch.autograd.grad(y.pow(3).sum(), params[name])[0] for y in (slow, quick))
    torch.testing.assert_close(quick_gradient, slow_gradient, rtol=1e-8, atol=1e-8)


class Grid(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self):
        return self.module.forward_grid()


@pytest.mark.parametrize("n_heads", [1, 4, 5, 20])
def test_attend_pairs_equals_attend_over_a_context_of_two(n_heads):
    generator = torch.Generator().manual_seed(n_heads)
    first, last = torch.randn(2, 30, 4, generator=generator, dtype=torch.double)
    shapes = [(n_heads, 4, 3), (n_heads, 4, 3), (n_heads, 4, 2), (n_heads, 2, 6)]
    maps = [torch.randn(*shape, generator=generator, dtype=torch.double) for shape in shapes]
    torch.testing.assert_close(
        attend_pairs(first, last, *maps), attend(last, torch.stack((first, last), dim=1), *maps), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize(("architecture", "signature"), [*((a, LONG) for a in LOOKUPS), (DEEP, PAIRS)], ids=label)
def test_sequences_longer_than_two_and_deep_models_have_no_grid_path(architecture, signature):
    assert not hasattr(architecture.build(signature), "forward_grid")


def test_one_head_over_two_tokens_is_the_equation_of_the_paper():
    module = built(Aot(d_model=3, n_heads=1, d_qk=2, d_vo=2), Lookup(4, 2, 3)).double()
    x1, x2 = module.W_E[1] + module.P[0], module.W_E[3] + module.P[1]
    scores = torch.stack([(x2 @ module.W_Q[0]) @ (x @ module.W_K[0]) for x in (x1, x2)]) / math.sqrt(2)
    a = scores.exp() / scores.exp().sum()
    expected = (x2 + (a[0] * x1 + a[1] * x2) @ module.W_V[0] @ module.W_O[0]) @ module.W_U
    torch.testing.assert_close(module(torch.tensor([[1, 3]]))[0], expected)


def test_layers_are_causal():
    layer = built(DEEP, LONG).earlier[0]
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    changed = torch.cat([x[:, :3], x[:, 3:] + 1], dim=1)
    torch.testing.assert_close(layer(x)[:, :3], layer(changed)[:, :3])
    assert (layer(x)[:, 3] - layer(changed)[:, 3]).abs().min() > 1e-3


@pytest.mark.parametrize("architecture", [DEEP_SHARED, DEEP_MLP])
def test_every_layer_of_a_deep_model_has_its_own_maps_and_mlp(architecture):
    one = architecture.model_copy(update={"n_layers": 1})
    two = architecture.model_copy(update={"n_layers": 2})
    per_layer = count(two, PAIRS) - count(one, PAIRS)
    # two heads' four maps of 3 x 3 and two shared maps of 6 x 3, or maps of 6 x (3, 3, 4, 4) and an MLP of 6 x 7
    expected = 2 * 4 * 9 + 2 * 18 if architecture is DEEP_SHARED else 2 * 6 * 14 + 2 * 42 + 7 + 6
    assert per_layer == expected == (count(architecture, PAIRS) - count(one, PAIRS)) / 2


def test_a_shared_context_gives_the_same_outputs_as_copies_of_it():
    g = torch.Generator().manual_seed(0)
    maps = [torch.randn(2, 5, 3, generator=g), torch.randn(2, 5, 3, generator=g)]
    maps += [torch.randn(2, 5, 4, generator=g), torch.randn(2, 4, 6, generator=g)]
    context, queries = torch.randn(1, 7, 5, generator=g), torch.randn(9, 5, generator=g)
    copies = attend(queries, context.expand(9, 7, 5), *maps)
    torch.testing.assert_close(attend(queries, context, *maps), copies, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", [a for a in RECALLS if a.name != "mlp"], ids=label)
def test_attention_does_not_depend_on_the_order_of_the_context(architecture):
    module, (contexts, queries) = built(architecture, OWN), inputs_of(OWN)
    torch.testing.assert_close(module(contexts.flip(1), queries), module(contexts, queries), rtol=1e-4, atol=1e-5)


def test_attention_only_has_the_number_of_weights_of_theorem_1():
    N, S, d, d_h, H = 50, 2, 10, 7, 11
    aot = Aot(d_model=d, n_heads=H, d_qk=d_h, d_vo=d_h)
    assert count(aot, Lookup(N, S, N)) == d * (S + 2 * N + 4 * d_h * H)
    assert count(aot, Lookup(N, 5, N)) == d * (5 + 2 * N + 4 * d_h * H)


def test_the_authors_count_leaves_out_one_position_vector():
    """4d²H + d(2N+1) in the authors' code counts one position vector; two tokens have two."""
    N, d, H = 50, 10, 11
    same_widths = {"d_model": d, "n_heads": H, "d_qk": d, "d_vo": d}
    authors = 4 * d * d * H + d * (2 * N + 1)
    assert count(Aot(**same_widths), Lookup(N, 2, N)) == authors + d
    assert count(Aot(**same_widths, positions=False), Lookup(N, 2, N)) == authors - d


def test_the_published_code_is_the_attention_only_transformer_but_for_the_residuals_position():
    own, published = Aot(d_model=6, n_heads=2, d_qk=6, d_vo=6), PublishedAot(d_model=6, n_heads=2, d_head=6)
    weights = dict(built(own, PAIRS).named_parameters())
    names = {name: weights[name.removeprefix("layers.0.")] for name, _ in published.build(PAIRS).named_parameters()}
    tokens = PAIRS.grid()
    found = functional_call(published.build(PAIRS), names, (tokens,))
    expected = built(own, PAIRS)(tokens) - weights["P"][1] @ weights["W_U"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_layers", [1, 3])
def test_the_published_code_attends_as_torchs_own_attention(n_layers):
    d, d_h, H = 4, 3, 2
    module = PublishedAot(d_model=d, n_heads=H, d_head=d_h, n_layers=n_layers).build(PAIRS)
    tokens = PAIRS.grid()
    x = module.W_E[tokens]  # (slots, 2, d)
    later = torch.ones(2, 2).triu(1) == 1
    for layer in module.layers:
        z = x @ layer.W_in + layer.b_in + module.P
        summed = torch.zeros_like(z)
        for h in range(H):
            head = torch.nn.MultiheadAttention(d_h, 1, bias=False, batch_first=True)
            maps = (layer.W_Q, layer.W_K, layer.W_V)
            head.in_proj_weight = torch.nn.Parameter(torch.cat([W[h].mT for W in maps]).detach())
            head.out_proj.weight = torch.nn.Parameter(layer.W_O[h].mT.detach())
            summed = summed + head(z, z, z, attn_mask=later)[0]
        x = x + summed @ layer.W_out + layer.b_out
    torch.testing.assert_close(module(tokens), x[:, -1] @ module.W_U, rtol=1e-4, atol=1e-5)


def test_the_published_code_has_the_number_of_weights_of_its_formula():
    N, d, d_h, H = 50, 10, 7, 11
    published = PublishedAot(d_model=d, n_heads=H, d_head=d_h)
    assert count(published, Lookup(N, 2, N)) == 2 * N * d + 2 * d_h + 4 * d_h * d_h * H + 2 * d * d_h + d_h + d
    same = PublishedAot(d_model=d, n_heads=H, d_head=d)
    assert count(same, Lookup(N, 2, N)) == 2 * N * d + 2 * d + 4 * d * d * H


def test_a_transformer_of_the_authors_width_has_the_weights_of_attention_plus_biases():
    N, d, H = 70, 10, 11
    one_width = {"d_model": d, "d_qk": d, "d_vo": d}
    d_mlp = 2 * d * (H - 1)
    attention = count(Aot(**one_width, n_heads=H), Lookup(N, 2, N))
    assert count(Transformer(**one_width, n_heads=1, d_mlp=d_mlp), Lookup(N, 2, N)) == attention + d_mlp + d


def test_multi_head_attention_has_the_number_of_weights_of_its_formula():
    d, C, H, d_qk, d_vo = 64, 100, 4, 32, 3
    mha = Mha(n_heads=H, d_qk=d_qk, d_vo=d_vo)
    assert count(mha, Recall(32, d, C)) == H * (2 * d * d_qk + d * d_vo + d_vo * C)
    assert count(mha, Relation(64, d)) == 2 * H * d * d_qk + 2


def test_the_split_over_heads_does_not_change_the_number_of_weights():
    for signature in (PAIRS, OWN, ITEMS):
        assert len({count(HeadSplit(n_heads=h), signature) for h in (1, 2, 4, 8, 16, 32)}) == 1


def test_along_the_diagonal_one_head_keeps_its_number_of_weights():
    shapes = [HeadSplit(d_model=6, n_heads=1, d_vo_total=v, diagonal=True) for v in range(1, 7)]
    assert [s.heads(PAIRS).d_qk for s in shapes] == [6, 5, 4, 3, 2, 1]
    assert len({count(s, PAIRS) for s in shapes}) == 1


def test_grouped_queries_with_one_group_per_head_are_the_attention_only_transformer():
    full, one = Gqa(**SMALL, n_kv_heads=2), Aot(**SMALL)
    torch.testing.assert_close(built(full, PAIRS)(PAIRS.grid()), built(one, PAIRS)(PAIRS.grid()))
    saved = 6 * (3 + 4)  # one head's W_K and W_V
    assert count(one, PAIRS) - count(Gqa(**SMALL, n_kv_heads=1), PAIRS) == saved


def test_modules_have_the_parameter_names_that_the_constructive_solver_writes():
    recall = {name: tuple(p.shape) for name, p in Mha(**SMALL).build(OWN).named_parameters()}
    assert recall == {"W_Q": (2, 5, 3), "W_K": (2, 5, 3), "W_V": (2, 5, 4), "W_O": (2, 4, 4)}
    tokens = {name: tuple(p.shape) for name, p in Aot(**SMALL).build(PAIRS).named_parameters()}
    heads = {"W_Q": (2, 6, 3), "W_K": (2, 6, 3), "W_V": (2, 6, 4), "W_O": (2, 4, 6)}
    assert tokens == {"W_E": (7, 6), "P": (2, 6), **heads, "W_U": (6, 5)}
    relation = {name: tuple(p.shape) for name, p in Mha(**SMALL).build(ITEMS).named_parameters()}
    assert relation == {"W_Q": (2, 4, 3), "W_K": (2, 4, 3), "log_scale": (), "threshold": ()}


@pytest.mark.parametrize(
    ("architecture", "signature", "expected"),
    [
        (Mha(**SMALL), OWN, Heads(2, 5, 3, 4)),
        (Mha(**SMALL), PAIRS, Heads(2, 6, 3, 4)),
        (Mha(**SMALL), ITEMS, Heads(2, 4, 3, 0)),
        (Mha(**SMALL, readout="routed"), ITEMS, None),
        (Aot(**SMALL), PAIRS, Heads(2, 6, 3, 4, 1, True, True, True)),
        (DEEP, LONG, Heads(2, 6, 3, 4, 3, True, True, True)),
        (Aot(d_qk=3, d_vo=3, shared_maps=True), PAIRS, None),
        (HeadSplit(d_model=6, n_heads=4, d_qk_total=8, d_vo_total=12), PAIRS, Heads(4, 6, 2, 3, 1, True, False, True)),
        (HeadSplit(n_heads=4, d_qk_total=8, d_vo_total=12), OWN, Heads(4, 5, 2, 3)),
        (Gqa(**SMALL, n_kv_heads=2), PAIRS, Heads(2, 6, 3, 4, 1, True, True, True)),
        (Gqa(**SMALL, n_kv_heads=1), PAIRS, None),
        (Gqa(**SMALL, n_kv_heads=1), ITEMS, Heads(2, 4, 3, 0)),
        (Transformer(), PAIRS, None),
        (Mlp(), PAIRS, None),
    ],
    ids=label,
)
def test_heads_are_described_as_the_theorems_count_them(architecture, signature, expected):
    assert architecture.heads(signature) == expected


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
def test_every_free_width_changes_the_number_of_weights(architecture, signature):
    for field in architecture.widths(signature):
        wider = architecture.model_copy(update={field: 2 * getattr(architecture, field)})
        assert count(wider, signature) > count(architecture, signature), field


@pytest.mark.parametrize(
    ("architecture", "signature", "reason"),
    [
        (Aot(), OWN, "aot embeds tokens; Recall tasks give vectors"),
        (Transformer(), ITEMS, "transformer embeds tokens; Relation tasks give vectors"),
        (HeadSplit(n_heads=3), PAIRS, "n_heads must divide d_vo_total, got 32 over 3 heads; .* is 33"),
        (HeadSplit(n_heads=3), ITEMS, "n_heads must divide d_qk_total, got 32 over 3 heads; .* is 33"),
        (HeadSplit(diagonal=True), ITEMS, "a relation has no values"),
        (HeadSplit(diagonal=True, n_heads=1, d_model=6), PAIRS, "from 1 to d = 6, got 32 per head"),
        (LinearAttention(), ITEMS, "no softmax to replace"),
        (Bilinear(), OWN, "joins two vectors"),
        (Bilinear(d_model=33), LONG, r"keys of width d_model\^length up to 1,048,576, got 33\^4; lower d_model"),
    ],
    ids=label,
)
def test_unsupported_signatures_are_refused_in_one_line(architecture, signature, reason):
    with pytest.raises(UnsupportedSignature, match=reason) as refusal:
        architecture.build(signature)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: Gqa(n_heads=6, n_kv_heads=4),
            r"n_kv_heads must divide n_heads, got 4 for 6; choose from \[1, 2, 3, 6\]",
        ),
        (lambda: Aot(d_vo=0), "greater than or equal to 1"),
        (lambda: Mha(d_vo=0), "greater than or equal to 1"),
        (lambda: HeadSplit(d_vo_total=0), "greater than or equal to 1"),
        (lambda: Aot(shared_maps=True, d_qk=3, d_vo=4), "shared_maps needs d_qk = d_vo"),
    ],
)
def test_bad_widths_are_refused_before_anything_is_built(make, reason):
    with pytest.raises(ValidationError, match=reason):
        make()


@pytest.mark.slow
def test_one_head_plateaus_where_four_recover_the_permutation():
    """D_K = 32 on 64 items in 16 dimensions: one head stays near F1 0.5, four heads find nearly every edge."""
    best = {h: max(f1_of(HeadSplit(n_heads=h, d_qk_total=32), rate) for rate in (0.1, 0.2)) for h in (1, 4)}
    assert best[1] < 0.7
    assert best[4] >= 0.99


def f1_of(architecture: Architecture, rate: float, steps: int = 1500) -> float:
    task = Rgr(n_items=64, d_item=16, graph="permutation")
    problem = task.problem(64, 64, torch.Generator().manual_seed(0))
    module = built(architecture, task.signature)
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        task.loss(module(*problem.inputs), problem).backward()
        optimiser.step()
        decay.step()
    return task.metrics(module(*problem.inputs), problem)["f1"].item()


def test_the_saturation_share_counts_heads_and_examples_whose_attention_has_one_target() -> None:
    task, arch = Sequences(n_context=2, d_input=3, n_classes=2), Mha(n_heads=2, d_qk=1, d_vo=1)
    module = arch.build(task.signature)
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
        module.W_Q[0, 0, 0], module.W_K[0, 0, 0] = 1.0, 1.0  # head 0: logits are the products of first coordinates
    contexts = torch.tensor([[[9.0, 0, 0], [0, 0, 0]]]).expand(3, -1, -1)
    queries = torch.tensor([[1.0, 0, 0], [0.5, 0, 0], [1.0, 0, 0]])  # weights 1 / (1 + e^-9) = .9999, .989, .9999
    problem = Problem((contexts, queries), torch.zeros(3, dtype=torch.int64), torch.tensor([1.0, 1.0, 0.0]))
    assert arch.analyse(module, problem)["saturation_share"] == 0.25  # one of two examples in one of two heads
    shared = problem._replace(inputs=(contexts[:1], queries))
    assert arch.analyse(module, shared)["saturation_share"] == 0.25
