"""State sizes: what each architecture says it carries, counted by hand, and no part of its code hash."""

from __future__ import annotations

import ast

import pytest

from capbench import Architecture, Lookup, Relation
from capbench.registry.provenance import canonical_text
from capbench_plugins.aot import Aot
from capbench_plugins.deltanet import DeltaNet
from capbench_plugins.gated_deltanet import GatedDeltaNet
from capbench_plugins.gla import GatedLinearAttention
from capbench_plugins.linear_attention import LinearAttention
from capbench_plugins.mha import Mha
from capbench_plugins.mlp import Mlp
from capbench_plugins.published_aot import PublishedAot
from capbench_plugins.rwkv7 import Rwkv7
from capbench_plugins.ssd import Ssd
from capbench_plugins.transformer import Transformer

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
