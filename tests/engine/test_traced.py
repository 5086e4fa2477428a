"""Traced functions: the numbers of the function itself, whatever its operations do to memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capbench.engine.traced import traced


def tensors() -> list[Tensor]:
    """What is changed, a matrix, and indices."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(4, 6, generator=generator),
        torch.randn(4, 6, generator=generator),
        torch.randint(4, (4, 6), generator=generator),
    ]


def views_of_views(total: Tensor, x: Tensor, _: Tensor) -> None:
    turned = (x * 2).mT
    total.add_(turned.reshape(2, 12).reshape(6, 4).mT)


def results_read_late(total: Tensor, x: Tensor, _: Tensor) -> None:
    first = x + 1
    seen = first.view(-1)
    second = (first * 3).exp()
    third = (second - 1).sin()
    total.copy_(seen.view(4, 6) * second + third)


def results_changed_in_place(total: Tensor, x: Tensor, _: Tensor) -> None:
    doubled = x * 2
    part = doubled[1:]
    part.mul_(3)
    total.add_(doubled)


def zeros_added_to(total: Tensor, x: Tensor, index: Tensor) -> None:
    total.add_(x.new_zeros(4, 6).scatter_add(0, index, x))
    ones = torch.ones_like(x)
    ones[0] += x[1]
    total.mul_(ones)


def several_results(total: Tensor, x: Tensor, _: Tensor) -> None:
    largest, where = x.max(dim=1)
    left, right = x.split(3, dim=1)
    total.add_(largest.unsqueeze(1) + where.unsqueeze(1) + torch.cat([right, left], dim=1))
    total.sub_(torch.nn.functional.layer_norm(x, (6,)))


def constants(total: Tensor, x: Tensor, index: Tensor) -> None:
    rows = torch.arange(4).unsqueeze(1)
    total.add_(x[rows, index] / torch.tensor(3.0) + torch.zeros_like(x))


def other_types(total: Tensor, x: Tensor, index: Tensor) -> None:
    total.add_(x.double().cumsum(1).float() + index.float() + (x > 0).to(x.dtype))


def nothing_left(total: Tensor, x: Tensor, _: Tensor) -> None:
    total.add_(x[:0].sum() + x.select(0, 2).sum())


@pytest.mark.parametrize(
    "function",
    [
        views_of_views,
        results_read_late,
        results_changed_in_place,
        zeros_added_to,
        several_results,
        constants,
        other_types,
        nothing_left,
    ],
)
def test_it_comes_to_the_same_numbers_again_and_again(function: Callable[..., None]) -> None:
    own, given = tensors(), tensors()
    program = traced(function, given)
    assert torch.equal(given[0], own[0]), "tracing changes nothing"
    for turn in range(3):
        for some in (own, given):
            some[1:] = [some[1] + turn, (some[2] + turn) % 4]  # other tensors than before
        function(*own)
        program(given)
        assert torch.equal(given[0], own[0])


def test_tensors_that_are_new_are_read_and_those_lent_stay_as_they_are() -> None:
    total, x, index = tensors()
    program = traced(views_of_views, [total, x, index])
    before, seen = total.clone(), x.clone()
    program([total, torch.zeros_like(x), index])
    assert torch.equal(total, before)
    program([total, x, index])
    assert not torch.equal(total, before)
    assert torch.equal(x, seen)


def test_what_is_drawn_at_random_is_drawn_anew() -> None:
    def function(total: Tensor) -> None:
        total.copy_(torch.rand(4))

    given = torch.zeros(4)
    program = traced(function, [given])
    program([given])
    first = given.clone()
    program([given])
    assert not torch.equal(first, given)


def test_memory_whose_result_nobody_reads_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(total: Tensor, x: Tensor) -> None:
        for _ in range(50):
            x = x.sin()
        total.copy_(x)

    made, given, empty = [], [torch.zeros(1000), torch.randn(1000)], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **how: made.append(size) or empty(*size, **how))
    program = traced(function, given)
    assert made.count((1000,)) == 2
    program(given)
    expected = given[1]
    for _ in range(50):
        expected = expected.sin()
    assert torch.equal(given[0], expected)


def test_an_operation_that_changes_several_tensors_is_refused() -> None:
    def function(one: Tensor, other: Tensor) -> None:
        torch._foreach_add_([one, other], 1.0)

    with pytest.raises(NotImplementedError, match="_foreach_add_"):
        traced(function, [torch.zeros(2), torch.zeros(2)])
