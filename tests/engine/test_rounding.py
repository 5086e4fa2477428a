"""Weights rounded to few bits: by hand, and what trained models still hold."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from capbench.engine.rounding import round_tensor


@pytest.mark.parametrize(
    ("bits", "expected"),
    [  # 2 bits: -1, 0, 1; 3 bits: steps of a third; 4 bits: steps of a seventh
        (2, [-1.0, 0.0, 0.0, 1.0, 1.0]),
        (3, [-1.0, 0.0, 1 / 3, 2 / 3, 1.0]),
        (4, [-1.0, -1 / 7, 2 / 7, 4 / 7, 1.0]),
    ],
)
def test_rounding_agrees_with_values_made_by_hand(bits: int, expected: list[float]) -> None:
    rounded = round_tensor(torch.tensor([-1.0, -0.1, 0.3, 0.6, 1.0]), bits)
    torch.testing.assert_close(rounded, torch.tensor(expected))


def test_rounding_uses_the_scale_of_the_tensor_and_keeps_zeros() -> None:
    weights = torch.tensor([[-8.0, 3.0], [0.5, 8.0]])
    torch.testing.assert_close(round_tensor(weights, 2), torch.tensor([[-8.0, 0.0], [0.0, 8.0]]))
    assert round_tensor(torch.zeros(3), 4).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_rounding_leaves_no_more_values_than_its_bits_can_name(bits: int) -> None:
    weights = torch.randn(4096, generator=torch.Generator().manual_seed(bits))
    rounded = round_tensor(weights, bits)
    assert len(rounded.unique()) <= 2**bits - 1
    assert (rounded - weights).abs().max() <= weights.abs().max() / (2 ** (bits - 1) - 1) / 2 + 1e-6
    torch.testing.assert_close(round_tensor(-weights, bits), -rounded)


RUN = (
    "run", "--task", "triples", "--arch", "folded_mlp", "--preset", "quick", "--steps", "400", "--lr", "0.03",
    "--set", "task.n_keys=16", "--set", "task.n_queries=16", "--set", "task.n_values=8", "--set", "arch.d_mlp=8",
)  # fmt: skip


@pytest.mark.slow
def test_capacity_falls_with_precision_within_its_intervals_and_the_document_verifies(capbench, tmp_path) -> None:
    from capbench.documents.result import Result
    from capbench.measure.session import NullListener
    from capbench.registry.registry import load_registry
    from capbench.studies.verify.verify import VerificationStatus, verify_result

    done = capbench(*RUN, "--precision", "--json", "--plot", str(tmp_path / "curve.svg"))
    assert done.code == 0, done.err
    result = Result.model_validate_json(done.out)
    points = result.precision
    assert [point.weight_bits for point in points] == [16, 8, 6, 4, 3, 2]
    for finer, coarser in pairwise(points):
        assert (coarser.capacity.ci_low or 0) <= (finer.capacity.ci_high or float("inf"))
    first, last = points[0].capacity, points[-1].capacity
    assert first.ci_low is not None
    assert last.ci_high is not None
    assert last.ci_high < first.ci_low  # at 2 bits a weight is -max, 0 or max: far fewer facts survive
    assert first.estimate == pytest.approx(result.capacity.estimate, rel=0.1)  # 16 bits lose next to nothing
    for point in points:  # nothing stores more than the bits of its weights
        assert point.bits_per_parameter is not None
        assert point.bits_per_parameter <= point.weight_bits
    drawn = (tmp_path / "curve.svg").read_text()
    assert "counting floor" in drawn
    assert "bits per weight" in drawn
    text = capbench(*RUN, "--precision")
    assert "bits per weight" in text.out

    verified = verify_result(result, load_registry(), NullListener(), n_sample=2, seed=0)
    assert verified.verdict is VerificationStatus.VERIFIED, verified.findings
    better = points[-1].model_copy(update={"capacity": first})
    forged = result.model_copy(update={"precision": (*points[:-1], better)})
    found = verify_result(forged, load_registry(), NullListener(), n_sample=0)
    assert found.verdict is VerificationStatus.SUMMARIES_WRONG
    assert any("precision" in line for line in found.findings)


def test_trials_without_precisions_keep_their_keys_and_documents_their_text(capbench) -> None:
    done = capbench("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--at", "4", "--json")
    document = json.loads(done.out)
    assert "precisions" not in document["protocol"]
    assert document["precision"] == []
    assert not any("rounded" in name for trial in document["trials"] for name in trial["data"])


def test_precision_is_refused_where_there_is_no_capacity_to_read(capbench) -> None:
    done = capbench("run", "--task", "rgr", "--arch", "mha", "--minimize", "d_qk", "--precision")
    assert done.code == 2
    assert "--precision is for a capacity or a success rate, got --minimize" in done.err
