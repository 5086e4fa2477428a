"""The exact capacities of a hyperplane and of a table, with numbers worked by hand."""

from __future__ import annotations

from math import comb

import pytest

from capbench import FACTS, Architecture, Kind, NotApplicable, Pedigree, Task
from capbench_plugins.mlp import Mlp
from capbench_plugins.perceptron import Perceptron
from capbench_tasks.dichotomies import Dichotomies
from capbench_tasks.dichotomies_bounds import Separable, TableRows
from capbench_tasks.sequences import Sequences

GAUSSIAN = Dichotomies(d_input=2)
TABLE = Dichotomies(d_input=3, points="one_hot")


def test_three_points_in_the_plane_are_separable_three_times_in_four():
    success = [Separable().success(GAUSSIAN, Perceptron(), n) for n in (1, 2, 3, 4, 5)]
    assert success == pytest.approx([1, 1, 3 / 4, 4 / 8, 5 / 16])  # 2^(1-N) (1 + (N - 1))


@pytest.mark.parametrize("d", [1, 2, 8, 33, 500])
def test_half_of_the_labellings_are_separable_at_twice_the_dimensions(d: int):
    task = Dichotomies(d_input=d)
    assert Separable().success(task, Perceptron(), 2 * d) == pytest.approx(0.5)
    assert Separable().evaluate(task, Perceptron(), None).value == 2 * d


def test_the_curve_is_covers_sum():
    task = Dichotomies(d_input=8)
    for n in (5, 8, 9, 13, 20, 40):
        expected = sum(comb(n - 1, k) for k in range(8)) / 2 ** (n - 1)
        assert Separable().success(task, Perceptron(), n) == pytest.approx(min(1.0, expected))


def test_a_table_of_three_rows_holds_three_labels_and_a_fourth_half_of_the_time():
    assert [TableRows().success(TABLE, Perceptron(), n) for n in (1, 3, 4, 5, 7)] == [1, 1, 1 / 2, 1 / 4, 1 / 16]
    found = TableRows().evaluate(TABLE, Perceptron(), None)
    assert (found.value, found.quantity) == (4, FACTS)


@pytest.mark.parametrize(
    ("bound", "task", "architecture", "reason"),
    [
        (Separable(), GAUSSIAN, Mlp(), "mlp is none"),
        (Separable(), TABLE, Perceptron(), "gaussian points"),
        (Separable(), Sequences(n_classes=1), Perceptron(), "random dichotomies"),
        (TableRows(), GAUSSIAN, Perceptron(), "one_hot points"),
        (TableRows(), TABLE, Mlp(), "mlp is none"),
    ],
)
def test_they_do_not_apply_elsewhere(bound: Separable, task: Task, architecture: Architecture, reason: str):
    with pytest.raises(NotApplicable, match=reason):
        bound.evaluate(task, architecture, None)
    with pytest.raises(NotApplicable, match=reason):
        bound.success(task, architecture, 4)


def test_kinds_and_pedigrees():
    assert (Separable.kind, Separable.pedigree) == (Kind.EXACT, Pedigree.PAPER)
    assert (TableRows.kind, TableRows.pedigree) == (Kind.EXACT, Pedigree.DERIVED)
