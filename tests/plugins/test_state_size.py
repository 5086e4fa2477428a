"""State sizes: what each architecture says it carries, counted by hand, and no part of its code hash."""

from __future__ import annotations

import ast

import pytest

from capbench import Architecture, Lookup, Relation
from capbench.registry.provenance import canonical_text
from capbench_plugins.aot import Aot
from capbench_plugins.deltanet import DeltaNet
from capbench_plugins.differential_attention import DifferentialAttention
from capbench_plugins.gated_deltanet import GatedDeltaNet
from capbench_plugins.gla import GatedLinearAttention
from capbench_plugins.gqa import Gqa
from capbench_plugins.headsplit import HeadSplit
from capbench_plugins.hopfield import Hopfield
from capbench_plugins.hybrid import Hybrid
from capbench_plugins.hyena import Hyena
from capbench_plugins.latent_attention import LatentAttention
from capbench_plugins.linear_attention import LinearAttention
from capbench_plugins.linear_mixer import LinearMixer
from capbench_plugins.mha import Mha
from capbench_plugins.mlp import Mlp
from capbench_plugins.published_aot import PublishedAot
from capbench_plugins.relu_attention import ReluAttention
from capbench_plugins.rwkv7 import Rwkv7
from capbench_plugins.sigmoid_attention import SigmoidAttention
from capbench_plugins.sliding_window import SlidingWindow
from capbench_plugins.ssd import Ssd
from capbench_plugins.transformer import Transformer
from capbench_plugins.uniform_attention import UniformAttention

TOKENS = Lookup(8, 10, 4)
HEADS = {"n_heads": 2, "d_qk": 3, "d_vo": 5}
CASES = [
    (DeltaNet(**HEADS), 2 * 15),
    (GatedDeltaNet(n_layers=2, **HEADS), 2 * 2 * 15),
    (GatedLinearAttention(**HEADS), 2 * 15),
    (Rwkv7(**HEADS), 2 * (15 + 3 + 3 + 3 + 3 + 5)),  # the position before: queries, keys, two gates and values
    (Ssd(d_conv=4, **HEADS), 2 * (15 + 3 * (3 + 3 + 5))),  # three earlier positions of queries, keys and values
    (LinearAttention(**HEADS), 2 * (15 + 3)),
    (Mha(**HEADS), 10 * 2 * 8),
    (Aot(n_layers=2, **HEADS), 2 * 10 * 2 * 8),
    (PublishedAot(n_heads=2, d_head=3), 10 * 2 * 6),
    (Transformer(**HEADS), 10 * 2 * 8),
    (Gqa(n_heads=4, n_kv_heads=2, d_qk=3, d_vo=5), 10 * 2 * 8),
    (HeadSplit(n_heads=2, d_qk_total=6, d_vo_total=10), 10 * 2 * 8),
    *((cls(n_layers=2, **HEADS), 2 * 10 * 2 * 8) for cls in (SigmoidAttention, ReluAttention, Hopfield)),
    (DifferentialAttention(**HEADS), 10 * 2 * (3 + 3 + 5)),
    (LatentAttention(d_latent=4, **HEADS), 10 * 4),
    (UniformAttention(**HEADS), 2 * 5),  # one sum of values
    (UniformAttention(scores="random", **HEADS), 10 * 2 * 8),
    (Hyena(d_inner=7, d_conv=3), 7 * (10 + 3 * 2)),  # ten positions, and two before the last of each of three maps
    (SlidingWindow(window=4, **HEADS), 4 * 2 * 8),
    (SlidingWindow(window=40, **HEADS), 10 * 2 * 8),
    (LinearMixer(**HEADS), 2 * 15),
    (LinearMixer(feature="elu", **HEADS), 2 * (15 + 3)),
    (LinearMixer(feature="taylor", **HEADS), 2 * 10 * (5 + 1)),  # 1, three elements, six products of two
    (Hybrid(window=4, **HEADS), 2 * (4 * 8 + 10 * (5 + 1))),
    (Hybrid(n_layers=3, window=4, feature="identity", **HEADS), 2 * (2 * 4 * 8 + 15)),
    (Mlp(), None),
    (DeltaNet(read="mean", **HEADS), None),
]


@pytest.mark.parametrize(("architecture", "size"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_the_state_has_as_many_elements_as_counted_by_hand(architecture: Architecture, size: int | None) -> None:
    assert architecture.state_size(TOKENS, 10) == size


def test_vectors_in_a_relation_are_no_sequence() -> None:
    assert Mha().state_size(Relation(4, 3), 4) is None


def test_a_state_size_changes_no_code_hash_and_another_method_does() -> None:
    texts = [
        canonical_text(ast.parse(f"class A:\n    x = 1\n    def build(self): return 1\n{more}"))
        for more in ("", "    def state_size(self): return 2\n", "    def other(self): return 2\n")
    ]
    assert texts[0] == texts[1] != texts[2]
