"""The bits-per-parameter reference, with numbers worked by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest
from torch import nn

from capbench import Architecture, Kind, Signature
from capbench.measure.theory import compare
from capbench_tasks.bigrams import Bigrams
from capbench_tasks.bits import BitsPerParameter
from capbench_tasks.rgr import Rgr


class Headless(Architecture):
    """No attention at all."""

    name: ClassVar[str] = "headless"

    def build(self, signature: Signature) -> nn.Module:
        raise NotImplementedError


def test_bits_per_parameter_is_a_reference_value_and_not_a_bound():
    for task in (Bigrams(), Rgr()):
        assert BitsPerParameter().evaluate(task, Headless(), None).value == 2
    record = compare([BitsPerParameter], Bigrams(), Headless(), None, {"bits_per_parameter": 1.1})[0]
    assert BitsPerParameter.kind is Kind.LAW
    assert (record.ratio, record.holds) == (None, None)
    assert record.constant == pytest.approx(0.55)
