"""What a `Mixer` costs: a training step of a layer in it, and of the same mathematics written by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from cases import LANES, Case, case_work, compiled_step, eager_step
from torch import nn

from capbench.engine.devices import keep_memory
from capbench_plugins.aot import Aot
from capbench_plugins.heads import HeadMixer, SoftmaxHeads
from capbench_tasks.bigrams import Bigrams

MOST = 1.3
"""A lane-step of a Mixer costs at most so many times one written by hand."""


class MixedAot(HeadMixer):
    """`aot` through `Mixer`."""

    name: ClassVar[str] = "mixed_aot"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        return SoftmaxHeads(d_model, self.n_heads, self.d_qk, self.d_vo)


def cases(name: str, task: Bigrams, load: int, **fields: int) -> tuple[Case, Case]:
    """The same model by hand and through `Mixer`."""
    by_hand, mixed = Aot(**fields), MixedAot(**fields)
    return Case(name, task, by_hand, load, LANES), Case(name, task, mixed, load, LANES)


PAIRS = [
    cases("pairs N=50, d=10, H=11", Bigrams(n_tokens=50), 2500, d_model=10, n_heads=11, d_qk=10, d_vo=10),
    cases("pairs N=32, d=16, H=2", Bigrams(n_tokens=32), 500, d_model=16, n_heads=2, d_qk=8, d_vo=8),
    cases("triplets N=12, d=8, H=4", Bigrams(n_tokens=12, length=3), 800, d_model=8, n_heads=4, d_qk=4, d_vo=4),
    cases("2 layers N=32, d=8, H=4", Bigrams(n_tokens=32), 500, d_model=8, n_heads=4, d_qk=4, d_vo=4, n_layers=2),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].name)
def test_both_compute_the_same(pair: tuple[Case, Case]) -> None:
    by_hand, mixed = (case.architecture.build(case.task.signature).double() for case in pair)
    theirs = dict(by_hand.named_parameters())
    with torch.no_grad():
        for name, weight in mixed.named_parameters():
            block, _, rest = name.removeprefix("blocks.").partition(".layer.")
            is_earlier = rest and int(block) < len(by_hand.earlier)
            weight.copy_(theirs[f"earlier.{block}.{rest}" if is_earlier else rest or name])
    tokens = pair[0].task.signature.grid()
    torch.testing.assert_close(mixed(tokens), by_hand(tokens))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].name)
def test_a_mixer_computes_and_moves_little_more(pair: tuple[Case, Case]) -> None:
    by_hand, mixed = (case_work(case) for case in pair)
    assert mixed.flops <= MOST * by_hand.flops, mixed.flops / by_hand.flops
    assert mixed.n_bytes <= MOST * by_hand.n_bytes, mixed.n_bytes / by_hand.n_bytes


@pytest.mark.parametrize("make", [eager_step, compiled_step], ids=["eager", "compiled"])
@pytest.mark.parametrize("which", [0, 1], ids=["by hand", "mixer"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].name)
def test_step(benchmark, pair: tuple[Case, Case], which: int, make) -> None:
    keep_memory()
    benchmark.group = f"mixer: {pair[which].name}, {make.__name__}"
    benchmark.pedantic(make(pair[which]), rounds=40, warmup_rounds=5)
