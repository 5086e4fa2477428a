"""Expressions of the named numbers of a result: what a plot or a fit has on its axes."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from capbench.documents.result import Reading, Result
from capbench.errors import BadSetting

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: Mapping[str, Callable[[float], float]] = {"log": math.log, "log2": math.log2, "sqrt": math.sqrt}
KNOWN = (
    "task.FIELD, arch.FIELD, n_parameters, at, capacity, d_qk_total, bits, bits_per_parameter, metrics.NAME, "
    'data.NAME, data["NAME"], bound.ID, readings.NAME, precision["BITS.NAME"]; with + - * / ** log() sqrt()'
)

BRACES = "{}"
"""Stands in an expression for each of several values."""

NameLookup = Callable[[str], float]
"""Gives the number of a dotted name; raises BadSetting where there is none."""


def evaluate_on(result: Result, expression: str) -> float:
    """The value of an expression for a result, such as `capacity` or `task.n_items * log(task.n_items)`."""
    numbers = numbers_of(result)

    def look_up(name: str) -> float:
        if name not in numbers:
            raise BadSetting(f"run {result.run_id} has no number {name!r}; known: {KNOWN}")
        return numbers[name]

    return evaluate(expression, look_up)


def evaluate(expression: str, look_up: NameLookup) -> float:
    """The value of an expression of named numbers."""
    try:
        value = _value(_parse(expression), look_up)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadSetting(f"cannot evaluate {expression!r}: {error}; known: {KNOWN}") from error
    if isinstance(value, complex) or not math.isfinite(value):
        raise BadSetting(f"{expression!r} is not a finite number here")
    return value


def names_in(expression: str) -> set[str]:
    """The dotted names in an expression."""
    return _names(_parse(expression))


def expand_braces(expression: str, values: Sequence[str]) -> tuple[str, ...]:
    """The expression once per value, with the value in place of its braces."""
    return tuple(expression.replace(BRACES, value) for value in values)


def check_braces(across: Sequence[str], y: Sequence[str]) -> None:
    """Raises ValueError for braces without values, values without braces, and values that are not numbers."""
    if any((BRACES in expression) != bool(across) for expression in y):
        raise ValueError("`across` lists the values that stand for {} in y; give both or neither")
    for value in across:
        try:
            float(value)
        except ValueError:
            raise ValueError(f"`across` takes numbers in quotes, got {value!r}") from None


def numbers_of(result: Result) -> dict[str, float]:
    """The numbers of a result that an expression may name."""
    plain = {
        "n_parameters": result.n_parameters,
        "capacity": result.capacity.estimate,
        "d_qk_total": result.capacity.d_qk_total,
        "bits": result.bits,
        "bits_per_parameter": result.bits_per_parameter,
        "at": result.protocol.at,
    }
    sections: Mapping[str, Mapping[str, object]] = {
        "task": result.task.params,
        "arch": result.architecture.params,
        "solver": result.solver.params,
        "metrics": result.metrics,
        "data": result.data,
        "bound": {bound.id: bound.value for bound in result.bounds},
        **{
            section: {name: found.estimate for name, found in named.items()}
            for section, named in named_readings(result).items()
        },
    }
    dotted = {f"{section}.{field}": value for section, fields in sections.items() for field, value in fields.items()}
    return {name: float(v) for name, v in {**plain, **dotted}.items() if _is_number(v)}


def named_readings(result: Result) -> dict[str, dict[str, Reading]]:
    """The readings of a result by section and name: of all models, and at each precision as `4.half`."""
    rounded = {f"{point.weight_bits}.{each.name}": each for point in result.precision for each in point.readings}
    return {"readings": {each.name: each for each in result.readings}, "precision": rounded}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parse(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadSetting(f"cannot evaluate {expression!r}: {error}; known: {KNOWN}") from error


def _names(node: ast.expr) -> set[str]:
    if isinstance(node, ast.BinOp):
        return _names(node.left) | _names(node.right)
    if isinstance(node, ast.Call):
        return {name for each in node.args for name in _names(each)}
    name = _dotted(node)
    return {name} if name else set()


def _dotted(node: ast.expr) -> str | None:
    """The dotted name that a node stands for; brackets hold one that is no identifier: data["tau_0.95_rank_lower"]."""
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.slice.value!s}"
    return None


def _value(node: ast.expr, look_up: NameLookup) -> float:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, look_up), _value(node.right, look_up))
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        function = FUNCTIONS.get(ast.unparse(node.func))
        if function is not None:
            return function(_value(node.args[0], look_up))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    name = _dotted(node)
    if name:
        return look_up(name)
    raise BadSetting(f"cannot evaluate {ast.unparse(node)!r}; known: {KNOWN}")
