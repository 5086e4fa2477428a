"""Traced functions: the numbers of the function itself, whatever its operations do to memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capbench.engine.traced import CannotTrace, traced


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


def results_left_out(total: Tensor, x: Tensor, _: Tensor) -> None:
    mean, _, _ = torch.ops.aten.native_layer_norm_backward(x, x, [6], x[:, :1], x[:, 1:2], None, None, [1, 0, 0])
    total.add_(mean)


def lists_of_results(total: Tensor, x: Tensor, _: Tensor) -> None:
    (halved,) = torch._foreach_mul([x], 0.5)
    total.add_(halved)


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
        results_left_out,
        lists_of_results,
        nothing_left,
    ],
)
def test_it_comes_to_the_same_numbers_again_and_again(function: Callable[..., None]) -> None:
    own, given = tensors(), tensors()
    program = traced(function, given, given[:1])
    assert torch.equal(given[0], own[0]), "tracing changes nothing"
    for turn in range(3):
        for some in (own, given):
            some[1:] = [some[1] + turn, (some[2] + turn) % 4]  # other tensors than before
        function(*own)
        program(given)
        assert torch.equal(given[0], own[0])


def test_tensors_that_are_new_are_read_and_those_lent_stay_as_they_are() -> None:
    total, x, index = tensors()
    program = traced(views_of_views, [total, x, index], [total])
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
    program = traced(function, [given], [given])
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
    program = traced(function, given, given[:1])
    assert made.count((1000,)) == 2
    program(given)
    expected = given[1]
    for _ in range(50):
        expected = expected.sin()
    assert torch.equal(given[0], expected)


HELD = torch.zeros(4)


def changes_several(total: Tensor, x: Tensor) -> None:
    torch._foreach_add_([total, x], 1.0)


def changes_another(total: Tensor, x: Tensor) -> None:
    x.mul_(2)
    total.add_(x)


def changes_what_it_holds(total: Tensor, x: Tensor) -> None:
    HELD.add_(1)
    total.add_(HELD + x)


def picks_by_numbers(total: Tensor, x: Tensor) -> None:
    total.add_(x[x > 0].sum())


def counts_by_numbers(total: Tensor, x: Tensor) -> None:
    total.add_(x.nonzero().sum())


def branches(total: Tensor, x: Tensor) -> None:
    total.add_(torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)))


@pytest.mark.parametrize(
    "function",
    [changes_several, changes_another, changes_what_it_holds, picks_by_numbers, counts_by_numbers, branches],
)
def test_what_would_come_to_other_numbers_later_is_refused(function: Callable[..., None]) -> None:
    total, x = torch.zeros(4), torch.randn(4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(CannotTrace):
        traced(function, [total, x], [total])
