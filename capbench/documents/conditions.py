"""Conditions on a result, as `capbench results --where` takes them: arch.n_heads>4, task.graph=random."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from capbench.documents.expressions import evaluate, evaluate_on, names_in, numbers_of
from capbench.documents.result import Result
from capbench.errors import BadSetting, nearest_name

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": lambda a, b: not math.isclose(a, b),
    "=": math.isclose,
    ">": operator.gt,
    "<": operator.lt,
}
CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|!=|==?|>|<)\s*(.+?)\s*")
TEXTS = "name, solver, protocol, preset"


def meets(result: Result, condition: str) -> bool:
    """Whether a result meets a condition; one that has not got the field that the condition names does not."""
    name, sign, value = _parts(condition)
    texts = _texts(result)
    if name in texts:
        return (texts[name] == value) is (sign == "=")
    numbers = numbers_of(result)
    if not names_in(name) <= numbers.keys() or not names_in(value) <= numbers.keys():
        return False
    return COMPARISONS[sign](evaluate_on(result, name), evaluate_on(result, value))


def check_condition(condition: str) -> None:
    """Raises BadSetting for what is no condition."""
    name, sign, value = _parts(condition)
    if sign in ("=", "!="):
        return
    for side in (name, value):
        evaluate(side, lambda _: 1.0)


def check_fields(results: Sequence[Result], condition: str) -> None:
    """Raises BadSetting for a condition that names a field that none of the results has, where there are any."""
    name, _, value = _parts(condition)
    texts = {text for result in results for text in _texts(result)}
    if not results or name in texts:
        return
    known = texts.union(*map(numbers_of, results))
    for field in (*sorted(names_in(name)), *sorted(names_in(value))):
        if field not in known:
            nearest = nearest_name(field, known)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise BadSetting(f"--where {condition}: no stored run has a field {field!r}{hint}")


def _parts(condition: str) -> tuple[str, str, str]:
    """The two sides of a condition and the sign between them."""
    match = CONDITION.fullmatch(condition)
    if match is None:
        raise BadSetting(f"--where takes FIELD>NUMBER or FIELD=VALUE, such as arch.n_heads>4, got {condition!r}")
    return match[1], "=" if match[2] == "==" else match[2], match[3]


def _texts(result: Result) -> dict[str, str]:
    """The texts of a result that a condition may name."""
    fields = {
        f"{section}.{name}": value if isinstance(value, str) else str(value).lower()
        for section, ref in (("task", result.task), ("arch", result.architecture), ("solver", result.solver))
        for name, value in ref.params.items()
        if isinstance(value, str | bool)
    }
    own = {
        "name": result.name,
        "solver": result.solver.name,
        "protocol": result.protocol.name,
        "preset": result.protocol.preset,
    }
    return {**fields, **own}
