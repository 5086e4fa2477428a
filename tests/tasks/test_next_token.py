"""The law of next-token distributions, with numbers worked by hand, and where it does not apply."""

from __future__ import annotations

import pytest

from capbench import Architecture, Kind, NotApplicable, Pedigree
from capbench_plugins.aot import Aot
from capbench_plugins.mlp import Mlp
from capbench_plugins.transformer import Transformer
from capbench_tasks.bigrams import Bigrams
from capbench_tasks.next_token import NextTokenLaw

DISTRIBUTIONS = Bigrams(n_tokens=11, target="distribution")


def test_the_law_divides_the_parameters_by_the_vocabulary_less_one() -> None:
    """d = 2: embedding 22, positions 4, four maps of 4, MLP 2·3 + 3 + 3·2 + 2, unembedding 22: 81, over 11 - 1."""
    transformer = Transformer(d_model=2, n_heads=1, d_qk=2, d_vo=2, d_mlp=3)
    found = NextTokenLaw().evaluate(DISTRIBUTIONS, transformer, None)
    assert found.value == pytest.approx(8.1)
    assert (NextTokenLaw.kind, NextTokenLaw.pedigree) == (Kind.LAW, Pedigree.PAPER)


@pytest.mark.parametrize("architecture", [Mlp(), Aot(), Transformer(n_layers=2)], ids=lambda a: a.name)
def test_it_is_about_one_layer_of_attention_and_an_mlp(architecture: Architecture) -> None:
    with pytest.raises(NotApplicable, match="one layer of attention and an MLP"):
        NextTokenLaw().evaluate(DISTRIBUTIONS, architecture, None)


def test_it_is_about_distributions() -> None:
    with pytest.raises(NotApplicable, match="target=distribution"):
        NextTokenLaw().evaluate(Bigrams(), Transformer(), None)
