"""Expressions of a result's numbers: arithmetic on names that it has, and nothing else."""

from __future__ import annotations

import pytest

from capbench.documents.expressions import check_braces, evaluate_on, expand_braces, names_in
from capbench.documents.result import Result
from capbench.errors import BadSetting


@pytest.fixture
def result(document: str) -> Result:
    result = Result.model_validate_json(document)
    return result.model_copy(update={"protocol": result.protocol.model_copy(update={"at": 12})})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("task.n_items", 24),
        ("arch.n_heads * arch.d_qk", 32),
        ("task.n_items*log2(4)/task.d_item - 1", 5),
        ("sqrt(task.n_items + 1)", 5),
        ("at", 12),
        ("-2 + 2**3", None),
        ("task.graph", None),
        ("arch.nothing", None),
        ("__import__('os').getcwd()", None),
        ("task.n_items.real", None),
        ("log(0)", None),
        ("1/0", None),
        ("(-8)**0.5", None),
        ("9**9**9**9", None),
        ("capacity; 1", None),
        ("", None),
    ],
)
def test_an_expression_names_numbers_of_a_result_and_nothing_else(
    result: Result, expression: str, value: float | None
) -> None:
    if value is None:
        with pytest.raises(BadSetting):
            evaluate_on(result, expression)
    else:
        assert evaluate_on(result, expression) == pytest.approx(value)


def test_names_that_are_no_identifiers_are_written_in_brackets(result: Result) -> None:
    ranked = result.model_copy(update={"data": {"tau_0.95_rank": 12.0}})
    assert evaluate_on(ranked, 'data["tau_0.95_rank"] / 4') == 3.0
    assert names_in('log(data["tau_0.95_rank"]) * bound.a.b - at') == {"data.tau_0.95_rank", "bound.a.b", "at"}
    with pytest.raises(BadSetting, match=r"no number 'data\.other'"):
        evaluate_on(ranked, 'data["other"]')


def test_braces_stand_for_each_of_several_values() -> None:
    assert expand_braces("metrics.tau_{}", ("0.5", "0.9")) == ("metrics.tau_0.5", "metrics.tau_0.9")
    check_braces(("0.5",), ("metrics.tau_{}",))
    with pytest.raises(ValueError, match="give both or neither"):
        check_braces((), ("metrics.tau_{}",))
    with pytest.raises(ValueError, match="numbers in quotes, got 'half'"):
        check_braces(("half",), ("metrics.tau_{}",))
