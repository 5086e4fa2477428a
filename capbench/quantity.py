"""Quantities of a result by name, and expressions of them: what a plot or a fit has on its axes."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from capbench.errors import BadSetting
from capbench.results import Result

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: Mapping[str, Callable[[float], float]] = {"log": math.log, "log2": math.log2, "sqrt": math.sqrt}
KNOWN = (
    "task.FIELD, arch.FIELD, n_parameters, at, capacity, d_qk_total, bits, bits_per_parameter, metrics.NAME, bound.ID; "
    "with + - * / ** log() sqrt()"
)


def quantity(result: Result, words: str) -> float:
    """The value of an expression such as `capacity` or `task.n_items * log(task.n_items) / task.d_item`."""
    try:
        value = _value(ast.parse(words.strip(), mode="eval").body, result)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError) as error:
        raise BadSetting(f"cannot work out {words!r}: {error}; known: {KNOWN}") from error
    if isinstance(value, complex) or not math.isfinite(value):
        raise BadSetting(f"{words!r} is not a finite number here")
    return value


def _value(node: ast.expr, result: Result) -> float:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, result), _value(node.right, result))
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        function = FUNCTIONS.get(ast.unparse(node.func))
        if function is not None:
            return function(_value(node.args[0], result))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(ast.unparse(node), result)
    raise BadSetting(f"cannot work out {ast.unparse(node)!r}; known: {KNOWN}")


def _named(name: str, result: Result) -> float:
    """A quantity by its dotted name."""
    section, _, field = name.partition(".")
    plain = {
        "n_parameters": result.n_parameters,
        "capacity": result.capacity.estimate,
        "d_qk_total": result.capacity.d_qk_total,
        "bits": result.bits,
        "bits_per_parameter": result.bits_per_parameter,
        "at": result.protocol.at,
    }
    found: object = {
        "task": result.task.params.get(field),
        "arch": result.architecture.params.get(field),
        "metrics": result.metrics.get(field),
        "bound": next((b.value for b in result.bounds if b.id == field), None),
    }.get(section, plain.get(name))
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadSetting(f"run {result.run_id} has no number {name!r}; known: {KNOWN}")
    return float(found)
