"""Bounds on recall, with numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from capbench import Architecture, NotApplicable, Signature
from capbench_plugins.deltanet import DeltaNet
from capbench_plugins.gla import GatedLinearAttention
from capbench_plugins.linear_mixer import LinearMixer
from capbench_plugins.mlp import Mlp
from capbench_tasks.recall import ContextRecall
from capbench_tasks.recall_bounds import (
    DeltaRuleWidth,
    LinearAttentionNoise,
    OrthogonalKeys,
    StateCounting,
    bits_per_answer,
)

TASK = ContextRecall(n_pairs=4, n_keys=6, n_values=16, tokens_per_pair=1)


class Carries(DeltaNet):
    """Says that its state has ten elements."""

    def state_size(self, signature: Signature, length: int) -> int | None:
        """Ten."""
        return 10


def test_an_answer_takes_its_bits_less_what_errors_save() -> None:
    assert bits_per_answer(16, 0.0) == 4
    assert bits_per_answer(2, 0.5) == pytest.approx(0), "a coin tells as much"
    # 4 - h(.01) - .01 log2 15 = 4 - .0807931 - .0390689
    assert bits_per_answer(16, 0.01) == pytest.approx(3.880138, abs=1e-5)


def test_a_state_of_ten_elements_of_32_bits_tells_82_values_of_sixteen() -> None:
    assert StateCounting().evaluate(TASK, Carries(), None).value == pytest.approx(320 / 3.880138, rel=1e-5)
    assert StateCounting(bits_per_element=8).evaluate(TASK, Carries(), None).value == pytest.approx(80 / 3.880138)
    with pytest.raises(NotApplicable, match="does not say"):
        StateCounting().evaluate(TASK, Mlp(), None)
    with pytest.raises(NotApplicable, match="asked for alike"):
        StateCounting().evaluate(TASK.model_copy(update={"recent": 2}), Carries(), None)


def test_the_laws_are_in_the_width_of_a_key() -> None:
    assert LinearAttentionNoise().evaluate(TASK, GatedLinearAttention(d_qk=12), None).value == 12
    assert DeltaRuleWidth().evaluate(TASK, DeltaNet(d_qk=5), None).value == 5
    with pytest.raises(NotApplicable, match="deltanet"):
        DeltaRuleWidth().evaluate(TASK, GatedLinearAttention(), None)
    taylor = LinearMixer(d_qk=3, feature="taylor")
    assert LinearAttentionNoise().evaluate(TASK, taylor, None).value == 10, "1, three elements, six products of two"


def test_a_law_of_binding_needs_a_layer_that_sees_key_and_value() -> None:
    apart = TASK.model_copy(update={"tokens_per_pair": 2})
    with pytest.raises(NotApplicable, match="n_layers=2"):
        DeltaRuleWidth().evaluate(apart, DeltaNet(), None)
    assert DeltaRuleWidth().evaluate(apart, DeltaNet(n_layers=2, d_qk=5), None).value == 5


def test_weights_with_an_axis_for_every_key_hold_all_pairs() -> None:
    K, V = TASK.n_keys, TASK.n_values
    architecture = DeltaNet(d_model=K + V, n_heads=1, d_qk=K, d_vo=V)
    assert OrthogonalKeys().evaluate(TASK, architecture, None).value == 4
    problem = TASK.problem(4, 4, torch.Generator().manual_seed(0))
    outputs = delta_rule_by_hand(architecture)(*problem.inputs)
    assert TASK.metrics(outputs, problem)["accuracy"] == 1


@pytest.mark.parametrize("narrower", [{"d_qk": 5}, {"d_vo": 15}, {"d_model": 21}])
def test_with_fewer_dimensions_nothing_is_guaranteed(narrower: dict[str, int]) -> None:
    with pytest.raises(NotApplicable, match="it needs d_qk ≥ 6, d_vo ≥ 16 and d_model ≥ 22"):
        OrthogonalKeys().evaluate(TASK, DeltaNet(**{"d_model": 22, "d_qk": 6, "d_vo": 16, **narrower}), None)


@torch.no_grad()
def delta_rule_by_hand(architecture: Architecture) -> torch.nn.Module:
    """Weights of the construction: a token is its key's axis and its value's; keys and values are projected apart."""
    K, V = TASK.n_keys, TASK.n_values
    module = architecture.build(TASK.signature)
    for weight in module.parameters():
        weight.zero_()
    named = dict(module.named_parameters())
    layer = {name.rpartition(".")[2]: weight for name, weight in named.items() if name.startswith("blocks.0.layer")}
    for name in ("W_Q", "W_K"):
        layer[name][0, :K] = torch.eye(K)
    layer["W_V"][0, K:], layer["W_O"][0, :, K:] = torch.eye(V), torch.eye(V)
    named["W_E"][:K, :K] = torch.eye(K)
    for key in range(K):
        rows = slice(K + key * V, K + (key + 1) * V)
        named["W_E"][rows, key], named["W_E"][rows, K:] = 1, torch.eye(V)
    named["W_U"][K:] = torch.eye(V)
    return module
