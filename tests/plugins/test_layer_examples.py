"""The architectures of layers and networks: each keeps the contract and is the equation of its paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.flop_counter import FlopCounterMode

from capbench import Architecture, Lookup, Mixer, Recall, Relation
from capbench_plugins.deltanet import DeltaNet
from capbench_plugins.differential_attention import DifferentialAttention
from capbench_plugins.folded_mlp import FoldedMlp
from capbench_plugins.gated_deltanet import GatedDeltaNet
from capbench_plugins.gated_mlp import GatedMlp
from capbench_plugins.gla import GatedLinearAttention
from capbench_plugins.hopfield import Hopfield
from capbench_plugins.hybrid import Hybrid
from capbench_plugins.hyena import Hyena
from capbench_plugins.kan import Kan
from capbench_plugins.latent_attention import LatentAttention
from capbench_plugins.linear_memory import LinearMemory
from capbench_plugins.linear_mixer import LinearMixer
from capbench_plugins.mha import Mha
from capbench_plugins.moe import Moe
from capbench_plugins.product_key_memory import ProductKeyMemory
from capbench_plugins.relu_attention import ReluAttention
from capbench_plugins.rwkv7 import Rwkv7
from capbench_plugins.sigmoid_attention import SigmoidAttention
from capbench_plugins.sliding_window import SlidingWindow
from capbench_plugins.ssd import Ssd
from capbench_plugins.top_k import top_k_mask
from capbench_plugins.transformer import Transformer
from capbench_plugins.uniform_attention import UniformAttention

PAIRS, RANGED, LONG = Lookup(7, 2, 5), Lookup(9, 2, 4, ((0, 6), (6, 9))), Lookup(6, 4, 3)
OWN, SHARED, ITEMS = Recall(3, 5, 4), Recall(3, 5, 4, shared_context=True), Relation(6, 4)
HEADS = {"d_model": 6, "n_heads": 2, "d_qk": 3, "d_vo": 4}
MIXERS = [
    UniformAttention(**HEADS),
    UniformAttention(**HEADS, scores="random"),
    SigmoidAttention(**HEADS),
    ReluAttention(**HEADS),
    DifferentialAttention(**HEADS),
    LatentAttention(**HEADS),
    Hopfield(**HEADS),
    DeltaNet(**HEADS),
    GatedDeltaNet(**HEADS),
    GatedLinearAttention(**HEADS),
    Ssd(**HEADS),
    Rwkv7(**HEADS),
    Hyena(d_model=6, d_inner=5),
    SlidingWindow(**HEADS, window=2),
    *(LinearMixer(**HEADS, feature=feature) for feature in ("identity", "elu", "taylor")),
    Hybrid(**HEADS, window=3),
]
DEEP = [each.model_copy(update={"n_layers": 2, "norm": "rms", "mlp": "gelu"}) for each in MIXERS]
NETWORKS = [
    GatedMlp(d_model=6, d_mlp=7),
    GatedMlp(d_model=6, d_mlp=7, gate="bilinear"),
    Moe(d_model=6, d_mlp=5),
    Moe(d_model=6, d_mlp=5, top_k=2),
    ProductKeyMemory(d_model=6, n_keys=4, d_key=3, top_k=2),
    Kan(d_model=6, d_mlp=5),
]
BUILT = [
    *((a, s) for a in (*MIXERS, *NETWORKS) for s in (PAIRS, RANGED, LONG, OWN, SHARED)),
    *((a, s) for a in DEEP for s in (PAIRS, OWN)),
    *((a, ITEMS) for a in NETWORKS),
    *((FoldedMlp(d_mlp=6), s) for s in (PAIRS, RANGED, LONG)),
    *((Transformer(**HEADS, d_mlp=7, n_layers=2), s) for s in (PAIRS, LONG)),
]


def label(value: object) -> str:
    if isinstance(value, Architecture):
        return "-".join(
            [
                value.name,
                *(
                    f"{k}={getattr(value, k)}"
                    for k in ("scores", "gate", "top_k", "n_layers", "feature")
                    if hasattr(value, k)
                ),
            ]
        )
    return repr(value)


def built(architecture: Architecture, signature: object, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build(signature).double()


def inputs_of(signature: object, slots: int = 24) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    if isinstance(signature, Lookup):
        return (signature.grid()[torch.randint(signature.n_combinations, (slots,), generator=g)],)
    if isinstance(signature, Recall):
        n = 1 if signature.shared_context else slots
        contexts = torch.rand(n, 3, 5, generator=g, dtype=torch.double)
        return contexts, torch.rand(slots, 5, generator=g, dtype=torch.double)
    return (torch.randn(6, 4, generator=g, dtype=torch.double),)


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
def test_models_of_a_stack_give_their_own_outputs_and_train_every_weight(architecture, signature) -> None:
    modules = [built(architecture, signature, seed) for seed in range(3)]
    inputs = inputs_of(signature)
    params, buffers = stack_module_state(modules)
    together = vmap(lambda p, b: functional_call(modules[0], (p, b), inputs))(params, buffers)
    alone = torch.stack([module(*inputs) for module in modules])
    assert alone[0].shape == signature.output_shape(24)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    alone.square().sum().backward()
    for name, weight in modules[0].named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert (weight.grad != 0).any(), name


@pytest.mark.parametrize(("architecture", "signature"), BUILT, ids=label)
def test_all_tensors_move_to_the_device(architecture, signature) -> None:
    module = built(architecture, signature).to("meta")
    assert module(*(tensor.to("meta") for tensor in inputs_of(signature))).is_meta
    if hasattr(module, "forward_grid"):
        assert module.forward_grid().is_meta


@pytest.mark.parametrize("architecture", [*MIXERS, *DEEP, *NETWORKS, FoldedMlp(d_mlp=6)], ids=label)
@pytest.mark.parametrize("signature", [PAIRS, RANGED], ids=label)
def test_the_grid_gives_what_each_pair_gives_alone(architecture, signature) -> None:
    module = built(architecture, signature)
    torch.testing.assert_close(module.forward_grid(), module(signature.grid()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("architecture", MIXERS, ids=label)
def test_layers_are_causal_and_their_last_output_is_that_of_all(architecture: Mixer) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = architecture.mixer(6, 5).double()
    x = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    y = layer(x)
    changed = torch.cat([x[:, :4], x[:, 4:] + 1], dim=1)
    torch.testing.assert_close(layer(changed)[:, :4], y[:, :4], rtol=1e-9, atol=1e-9)
    assert (layer(changed)[:, 4] - y[:, 4]).abs().min() > 1e-6
    torch.testing.assert_close(layer.mix_last(*layer.project(x)), y[:, -1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("architecture", [*MIXERS, *NETWORKS, FoldedMlp()], ids=label)
@pytest.mark.parametrize("signature", [Lookup(32, 2, 32), Recall(8, 16, 10)], ids=label)
def test_shapes_have_the_count(architecture, signature) -> None:
    if isinstance(architecture, FoldedMlp) and isinstance(signature, Recall):
        return
    shapes = type(architecture)().shapes(signature, 6000)
    counts = [sum(p.numel() for p in each.build(signature).parameters()) for each in shapes]
    assert counts
    assert all(abs(count - 6000) <= 300 for count in counts)


def test_the_delta_rule_recalls_the_last_value_written_under_a_key() -> None:
    layer = DeltaNet(**HEADS).mixer(6, 3)
    k1, k2 = torch.eye(3)[:2].view(2, 1, 1, 3)
    v1, v2, v3 = torch.randn(3, 1, 1, 4, generator=torch.Generator().manual_seed(0))
    S, write = torch.zeros(1, 1, 4, 3), torch.ones(1, 1, 1)
    for k, v in ((k1, v1), (k2, v2), (k1, v3)):
        S = layer.step(S, k, v, write)
    torch.testing.assert_close(S[0, 0, :, 0], v3.flatten(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(S[0, 0, :, 1], v2.flatten(), rtol=1e-4, atol=1e-4)


def test_gated_rules_without_forgetting_are_those_without_a_gate() -> None:
    k, v = torch.randn(2, 1, 3), torch.randn(2, 1, 4)
    S, beta, one = torch.randn(2, 1, 4, 3), torch.rand(2, 1, 1), torch.ones(2, 1, 1)
    plain = DeltaNet(**HEADS).mixer(6, 3).step(S, k, v, beta)
    torch.testing.assert_close(GatedDeltaNet(**HEADS).mixer(6, 3).step(S, k, v, one, beta), plain)
    added = S + v.unsqueeze(-1) * k.unsqueeze(-2)
    torch.testing.assert_close(GatedLinearAttention(**HEADS).mixer(6, 3).step(S, k, v, torch.ones(2, 1, 3)), added)


X = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.double)
"""Two sequences of four vectors of width 6."""


def drawn(architecture: Mixer) -> nn.Module:
    """A layer of the architecture with every weight drawn, also those that start at 0 or 1."""
    g = torch.Generator().manual_seed(2)
    layer = architecture.mixer(6, 4).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=g, dtype=torch.double) / 2)
    return layer


def heads_of(layer: nn.Module, x: Tensor, names: str = "QKV") -> Iterator[tuple[int, list[Tensor]]]:
    """Each head with what it projects the (length, d) vectors of one sequence to."""
    for h in range(2):
        yield h, [x @ getattr(layer, f"W_{name}")[h] for name in names]


@pytest.mark.parametrize(
    ("cls", "weigh"),
    [
        (SigmoidAttention, lambda scores: torch.sigmoid(scores - math.log(4)).tril()),
        (ReluAttention, lambda scores: scores.relu().tril() / 4),
    ],
)
def test_attention_weighs_by_the_function_of_its_paper(cls, weigh) -> None:
    layer, expected = drawn(cls(**HEADS)), torch.zeros_like(X)
    for n, x in enumerate(X):
        for h, (q, k, v) in heads_of(layer, x):
            expected[n] += weigh(q @ k.mT / math.sqrt(3)) @ v @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


def test_uniform_attention_is_the_mean_of_the_positions_so_far() -> None:
    layer = drawn(UniformAttention(**HEADS))
    expected = torch.stack([X[:, : n + 1].mean(dim=1) for n in range(4)], dim=1) @ layer.W_V @ layer.W_O
    torch.testing.assert_close(layer(X), expected)


def test_latent_attention_is_attention_to_keys_and_values_from_one_narrow_vector() -> None:
    layer, expected = drawn(LatentAttention(**HEADS, d_latent=2)), torch.zeros_like(X)
    for n, x in enumerate(X):
        c = x @ layer.W_C
        for h in range(2):
            scores = (x @ layer.W_Q[h]) @ (c @ layer.W_K[h]).mT / math.sqrt(3)
            a = scores.masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf).softmax(dim=-1)
            expected[n] += a @ c @ layer.W_V[h] @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


def unit(k: Tensor) -> Tensor:
    return k / (k.square().sum() + 1e-6).sqrt()


def delta(layer: nn.Module, x: Tensor, h: int, S: Tensor, k: Tensor, v: Tensor) -> Tensor:
    beta, k = torch.sigmoid(x @ layer.W_beta[:, h]), unit(k)
    return S @ (torch.eye(3) - beta * torch.outer(k, k)) + beta * torch.outer(v, k)


def gated_delta(layer: nn.Module, x: Tensor, h: int, S: Tensor, k: Tensor, v: Tensor) -> Tensor:
    alpha = torch.sigmoid(x @ layer.W_alpha[:, h] + layer.b_alpha[h])
    return delta(layer, x, h, alpha * S, k, v)


def gated_linear(layer: nn.Module, x: Tensor, h: int, S: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = (x @ layer.W_alpha + layer.b_alpha)[3 * h : 3 * h + 3]
    return S * torch.sigmoid(logits) ** (1 / 16) + torch.outer(v, k)


@pytest.mark.parametrize(
    ("cls", "rule"), [(DeltaNet, delta), (GatedDeltaNet, gated_delta), (GatedLinearAttention, gated_linear)]
)
def test_a_state_follows_the_rule_of_its_paper(cls, rule) -> None:
    layer, expected = drawn(cls(**HEADS)), torch.zeros_like(X)
    for n, x in enumerate(X):
        for h, (q, k, v) in heads_of(layer, x):
            S = torch.zeros(4, 3, dtype=torch.double)
            for t in range(4):
                S = rule(layer, x[t], h, S, k[t], v[t])
                expected[n, t] += S @ q[t] @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


def test_ssd_is_the_recurrence_of_mamba_2() -> None:
    layer, expected = drawn(Ssd(**HEADS)), torch.zeros_like(X)
    for n, x in enumerate(X):
        for h, parts in heads_of(layer, x):
            C, B, u = (convolved(part, c[:, h]) for part, c in zip(parts, layer.c, strict=True))
            C, B, u = (part * torch.sigmoid(part) for part in (C, B, u))
            delta_t = torch.log1p(torch.exp(x @ layer.W_delta[:, h] + layer.b_delta[h]))
            S = torch.zeros(4, 3, dtype=torch.double)
            for t in range(4):
                S = torch.exp(-delta_t[t] * layer.A[h].exp()) * S + delta_t[t] * torch.outer(u[t], B[t])
                expected[n, t] += (S @ C[t] + layer.D[h] * u[t]) @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


def convolved(x: Tensor, c: Tensor) -> Tensor:
    """y_t = Σ_j c_j x_{t-j} of one sequence."""
    return torch.stack([sum(c[j] * x[t - j] for j in range(min(t + 1, len(c)))) for t in range(len(x))])


def test_rwkv7_removes_along_kappa_and_adds_along_the_replacement_key() -> None:
    layer, expected = drawn(Rwkv7(**HEADS)), torch.zeros_like(X)
    for n, x in enumerate(X):
        for h, parts in heads_of(layer, x, "QKVwa"):
            before = [torch.cat([torch.zeros_like(part[:1]), part[:-1]]) for part in parts]
            mixed = zip(parts, before, layer.shift, strict=True)
            r, k, v, d, a = (part + mu[h] * (old - part) for part, old, mu in mixed)
            w, a = torch.exp(-math.exp(-0.5) * torch.sigmoid(d + layer.b_w[h])), torch.sigmoid(a)
            S = torch.zeros(4, 3, dtype=torch.double)
            for t in range(4):
                kappa, added = unit(k[t] * layer.xi[h]), k[t] * (1 + (a[t] - 1) * layer.alpha[h])
                S = S @ (torch.diag(w[t]) - torch.outer(kappa, a[t] * kappa)) + torch.outer(v[t], added)
                expected[n, t] += S @ r[t] @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


def test_a_window_is_softmax_attention_to_the_last_positions() -> None:
    layer, expected = drawn(SlidingWindow(**HEADS, window=2)), torch.zeros_like(X)
    for n, x in enumerate(X):
        for h, (q, k, v) in heads_of(layer, x):
            for t in range(4):
                near = slice(max(0, t - 1), t + 1)
                a = (k[near] @ q[t] / math.sqrt(3)).softmax(dim=0)
                expected[n, t] += a @ v[near] @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


FEATURES = {
    "identity": lambda x: x / 3**0.25,  # of queries and keys: their product is over √d_qk
    "elu": lambda x: nn.functional.elu(x) + 1,
    "taylor": lambda x: torch.cat([torch.ones(1), y := x / 3**0.25, torch.outer(y, y).flatten() / math.sqrt(2)]),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_linear_attention_is_a_recurrence_over_its_features(feature: str) -> None:
    layer, expected, phi = drawn(LinearMixer(**HEADS, feature=feature)), torch.zeros_like(X), FEATURES[feature]
    for n, x in enumerate(X):
        for h, (q, k, v) in heads_of(layer, x):
            S, z = torch.zeros(4, len(phi(k[0])), dtype=torch.double), 0
            for t in range(4):
                S, z = S + torch.outer(v[t], phi(k[t])), z + phi(k[t])
                y = S @ phi(q[t])
                expected[n, t] += (y if feature == "identity" else y / (z @ phi(q[t]))) @ layer.W_O[h]
    torch.testing.assert_close(layer(X), expected)


def test_layers_of_a_hybrid_take_turns_and_a_value_reaches_the_query_past_the_window() -> None:
    hybrid = Hybrid(**HEADS, n_layers=3, window=2, positions=False)
    module = built(hybrid, Lookup(7, 6, 5))
    assert [type(block.layer).__name__ for block in module.blocks] == ["WindowHeads", "LinearHeads", "WindowHeads"]
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5], [6, 1, 2, 3, 4, 5]])
    assert not torch.allclose(*module(tokens))
    near = built(SlidingWindow(**HEADS, n_layers=3, window=2, positions=False), Lookup(7, 6, 5))
    torch.testing.assert_close(*near(tokens))  # three layers of a window of two see four positions


def test_hyena_is_a_long_convolution_between_two_gates() -> None:
    layer, expected = drawn(Hyena(d_model=6, d_inner=5, d_conv=2)), torch.zeros_like(X)
    for n, x in enumerate(X):
        first, second, v = convolved(x @ layer.W_in, layer.c).chunk(3, dim=-1)
        expected[n] = first * convolved(second * v, layer.h) @ layer.W_O
    torch.testing.assert_close(layer(X), expected)


def test_one_update_of_a_hopfield_layer_is_softmax_attention() -> None:
    layer = Hopfield(**HEADS, n_updates=1).mixer(6, 3).double()
    x = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    expected = sum(
        ((x[0, -1] @ layer.W_Q[h]) @ (x[0] @ layer.W_K[h]).mT / math.sqrt(3)).softmax(-1)
        @ x[0]
        @ layer.W_V[h]
        @ layer.W_O[h]
        for h in range(2)
    )
    torch.testing.assert_close(layer(x)[0, -1], expected)


def test_the_differential_weights_cancel_at_equal_scores_and_lambda_one() -> None:
    layer = DifferentialAttention(**HEADS, lambda_init=0.5).mixer(6, 3).double()
    with torch.no_grad():
        layer.W_Q.zero_()
        layer.lambda_q.copy_(torch.tensor([[math.log(1.5), 0, 0], [0, 0, 0]], dtype=torch.double))  # λ = 1.5 - 1 + .5
        layer.lambda_k.copy_(torch.tensor([[1.0, 0, 0], [0, 0, 0]], dtype=torch.double))
    x = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    assert layer(x).abs().max() < 1e-6


def test_top_k_keeps_the_largest() -> None:
    scores = torch.tensor([[1.0, 5.0, 3.0, 4.0], [0.0, -1.0, -2.0, -3.0]])
    assert top_k_mask(scores, 1).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert top_k_mask(scores, 3).tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]


def test_an_expert_that_is_not_chosen_does_not_matter() -> None:
    network = Moe(n_experts=3, top_k=1, d_mlp=2).network(4, 5)
    z = torch.randn(1, 3 + 6)
    z[0, :3] = torch.tensor([0.0, 2.0, 1.0])
    before = network.rest(z)
    z[0, 3:5], z[0, 7:9] = 9.0, -9.0
    torch.testing.assert_close(network.rest(z), before)
    p = math.exp(2) / (1 + math.exp(2) + math.exp(1))
    torch.testing.assert_close(before, p * nn.functional.gelu(z[:, 5:7]) @ network.W_out[1])


def test_the_gates_of_several_experts_sum_to_one() -> None:
    network = Moe(n_experts=3, top_k=2, d_mlp=2).network(4, 5)
    z = torch.randn(1, 3 + 6)
    z[0, :3] = torch.tensor([0.0, 2.0, 1.0])
    outputs = [nn.functional.gelu(z[:, 3 + 2 * e : 5 + 2 * e]) @ network.W_out[e] for e in (1, 2)]
    gates = torch.tensor([2.0, 1.0]).softmax(dim=0)  # of the scores that are kept
    torch.testing.assert_close(network.rest(z), gates[0] * outputs[0] + gates[1] * outputs[1])


def test_a_memory_of_three_tokens_reads_the_product_of_their_vectors() -> None:
    memory = built(LinearMemory(d_model=3), Lookup(5, 3, 4))
    x = memory.vectors[torch.tensor([1, 0, 4])]
    expected = torch.einsum("a,b,c,abcv->v", *x, memory.W)
    torch.testing.assert_close(memory(torch.tensor([[1, 0, 4]]))[0], expected)
    (shape,) = LinearMemory().shapes(Lookup(5, 3, 4), 4000)
    assert shape.d_model == 10


def test_a_query_of_a_product_key_memory_reads_the_value_under_its_pair_of_half_keys() -> None:
    network = ProductKeyMemory(n_heads=1, n_keys=3, d_key=3, top_k=1).network(4, 5)
    with torch.no_grad():
        network.K.copy_(torch.eye(3).expand(1, 2, 3, 3))
    z = torch.tensor([[0.0, 0.0, 1.0, 0.0, 1.0, 0.0]])  # half-keys 2 and 1
    torch.testing.assert_close(network.rest(z)[0], network.V[2 * 3 + 1])


def test_the_splines_sum_to_one_inside_their_range_and_vanish_outside() -> None:
    network = Kan(n_intervals=5).network(3, 2)
    x = torch.linspace(-2, 2, 41)
    torch.testing.assert_close(network.basis(x).sum(-1), torch.ones(41))
    assert network.basis(torch.tensor([-10.0, 10.0])).abs().max() == 0
    assert network.basis(x).shape == (41, 8)


def test_the_folded_mlp_of_the_challenge_has_five_d_squared_weights() -> None:
    d = 16
    signature = Lookup(4 * d, 2, d, ((0, 2 * d), (2 * d, 4 * d)))
    module = built(FoldedMlp(d_mlp=d), signature)
    assert sum(p.numel() for p in module.parameters()) == 5 * d * d
    logits = torch.relu(module.E[0][3] + module.E[1][7]) @ module.W
    torch.testing.assert_close(module(torch.tensor([[3, 2 * d + 7]]))[0], logits)


def test_more_layers_of_the_transformer_have_more_weights() -> None:
    one, three = (sum(p.numel() for p in Transformer(n_layers=n).build(PAIRS).parameters()) for n in (1, 3))
    assert three == one + 2 * (4 * 10 * 10 + 2 * 10 * 60 + 60 + 10)


def test_the_old_name_is_the_same_memory() -> None:
    from capbench_plugins.bilinear import Bilinear

    torch.testing.assert_close(built(Bilinear(), PAIRS)(PAIRS.grid()), built(LinearMemory(), PAIRS)(PAIRS.grid()))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Moe(n_experts=2, top_k=3), "top_k must be at most n_experts, got 3 of 2"),
        (lambda: ProductKeyMemory(n_keys=2, top_k=3), "top_k must be at most n_keys, got 3 of 2"),
    ],
)
def test_impossible_selections_are_refused(make, reason) -> None:
    with pytest.raises(ValidationError, match=reason):
        make()


def test_the_page_about_layers_states_what_a_layer_costs_on_vectors() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layers.md").read_text()
    found = re.search(r"takes, in FLOPs, ([\d.]+).* to ([\d.]+) times .*\n.*, and ([\d.]+) to ([\d.]+) times", page)
    assert found is not None
    ratios = [flops_over_mha(n, 2 * n, is_shared) for is_shared in (False, True) for n in (4, 8)]
    assert [float(text) for text in found.groups()] == [round(ratio, 1) for ratio in ratios]


def flops_over_mha(n: int, d: int, is_shared: bool) -> float:
    """FLOPs of a step of softmax attention as a `Mixer` over those of `mha`, at 1,024 examples."""
    signature, heads = Recall(n, d, 10, shared_context=is_shared), {"n_heads": 4, "d_qk": 4, "d_vo": 4}
    inputs = torch.randn(1 if is_shared else 1024, n, d), torch.randn(1024, d)
    counts = []
    for architecture in (SlidingWindow(d_model=d, window=64, positions=False, **heads), Mha(**heads)):
        module = architecture.build(signature)
        with FlopCounterMode(display=False) as counter:
            module(*inputs).sum().backward()
        counts.append(counter.get_total_flops())
    return counts[0] / counts[1]
