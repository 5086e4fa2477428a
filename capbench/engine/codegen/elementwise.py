"""Operations that compute each element of their result from the elements at the same place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from capbench.engine.codegen.values import Body, CannotCompile, Index, Shape, Value

ARITHMETIC = {
    "add": "{0} + {alpha} * {1}",
    "sub": "{0} - {alpha} * {1}",
    "rsub": "{1} - {alpha} * {0}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "abs": "magnitude({0})",
    "sign": "sign({0})",
    "sgn": "sign({0})",
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "relu": "larger({0}, all_{t}(0))",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "bitwise_not": "~{0}",
    "square": "{0} * {0}",
    "_to_copy": "{0}",
    "to": "{0}",
    "fill": "{1}",
}
"""Computed in the type of the result."""
FRACTIONS = {
    "true_divide": "{0} / {1}",
    "reciprocal": "1 / {0}",
    "sqrt": "v_sqrt({0})",
    "rsqrt": "1 / v_sqrt({0})",
    "exp": "v_exp({0})",
    "exp2": "v_exp({0} * all_{t}(0.693147180559945309))",
    "expm1": "v_expm1({0})",
    "log": "v_log({0})",
    "log1p": "v_log1p({0})",
    "log2": "v_log2({0})",
    "log10": "v_log10({0})",
    "lgamma": "v_lgamma({0})",
    "sin": "v_sin({0})",
    "cos": "v_cos({0})",
    "tan": "v_tan({0})",
    "asin": "v_asin({0})",
    "acos": "v_acos({0})",
    "atan": "v_atan({0})",
    "sinh": "v_sinh({0})",
    "cosh": "v_cosh({0})",
    "atan2": "v_atan2({0}, {1})",
    "tanh": "v_tanh({0})",
    "erf": "v_erf({0})",
    "sigmoid": "v_sigmoid({0})",
    "floor": "v_floor({0})",
    "ceil": "v_ceil({0})",
    "round": "v_round({0})",
    "trunc": "v_trunc({0})",
    "silu": "{0} * v_sigmoid({0})",
}
"""Likewise, of floating-point numbers."""
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TRUTH = {
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_xor": "{0} ^ {1}",
    "logical_not": "~{0}",
}
POWERS = {
    1: "{0}",
    2: "{0} * {0}",
    3: "{0} * {0} * {0}",
    4: "({0} * {0}) * ({0} * {0})",
    0.5: "v_sqrt({0})",
    -1: "1 / {0}",
}
POWERS |= {-0.5: "1 / v_sqrt({0})", -2: "1 / ({0} * {0})", 0: "{0} - {0} + 1"}


LARGEST_FACTOR = 1 << 15
"""The largest number that integers are multiplied by: with indices below 65,536 the product fits 32 bits."""
EXPENSIVE = 10
"""The cost of a division or a function, in additions."""


def literal(number: float, dtype: torch.dtype) -> str:
    """A number in C."""
    if dtype is torch.bool:
        return "1" if number else "0"
    if dtype is torch.int64:
        if abs(number) >= 1 << 31:
            raise CannotCompile("integers beyond 32 bits are not compiled")
        return str(int(number))
    suffix = "f" if dtype is torch.float32 else ""
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return f"{float(number)!r}{suffix}"


def constant(number: float, shape: Shape, dtype: torch.dtype) -> Value:
    """A value whose elements are all the same number."""
    value = Value(shape, dtype, lambda body, at: "")

    def load(body: Body, at: Sequence[Index]) -> str:
        return body.let(value.c_type, f"all_{value.c_type}({literal(number, dtype)})")

    return Value(shape, dtype, load)


def elementwise(name: str, node: Node, result: Tensor, operands: Sequence[Any], options: dict[str, Any]) -> Value:
    """The value of an elementwise operation; raises CannotCompile for an operation that is not known."""
    form, dtype = _form(name, node, result, operands, options)
    values = [
        _as_value(operand, result, dtype) for operand in operands if isinstance(operand, Value | bool | int | float)
    ]
    shape, target = tuple(result.shape), Value(tuple(result.shape), result.dtype, lambda body, at: "")
    of_type = Value(shape, dtype, lambda body, at: "").c_type

    def load(body: Body, at: Sequence[Index]) -> str:
        types = ["vb" if name == "where" and k == 0 else of_type for k in range(len(values))]
        loaded = [_converted(body, value, at, own) for value, own in zip(values, types, strict=True)]
        alpha = f"all_{of_type}({literal(options.get('alpha', 1), dtype)})"
        text = form.format(*loaded, alpha=alpha, t=of_type)
        is_mask = name in COMPARISONS or name in ("isnan", "isinf", "isfinite")
        if is_mask or of_type == target.c_type:
            return body.let(target.c_type, text)
        return body.let(target.c_type, f"to_{target.c_type}({text})")

    own_cost = EXPENSIVE if "v_" in form or "/" in form else 1
    return Value(shape, result.dtype, load, cost=own_cost + sum(value.cost for value in values))


def _form(
    name: str, node: Node, result: Tensor, operands: Sequence[Any], options: dict[str, Any]
) -> tuple[str, torch.dtype]:
    """What is computed, and in which type."""
    if name in ("add", "sub") and options.get("alpha", 1) == 1:
        return ("{0} + {1}" if name == "add" else "{0} - {1}"), result.dtype
    if name == "mul" and result.dtype is torch.int64:
        _refuse_large_products(operands)
    if name in ARITHMETIC:
        return ARITHMETIC[name], result.dtype
    if name in FRACTIONS:
        return FRACTIONS[name], result.dtype
    if name in COMPARISONS:
        return f"mask({{0}} {COMPARISONS[name]} {{1}})", _common(node)
    if name in TRUTH:
        return TRUTH[name], torch.bool
    if name == "div":
        return _division(options.get("rounding_mode"), result), result.dtype
    if name == "where":
        return "choose({0}, {1}, {2})", result.dtype
    if name == "pow":
        return _power(operands), result.dtype
    if name in ("isnan", "isinf", "isfinite"):
        inf = "magnitude({0}) == all_{t}(__builtin_inf())"
        forms = {"isnan": "is_nan({0})", "isinf": f"mask({inf})", "isfinite": f"~(is_nan({{0}}) | mask({inf}))"}
        return forms[name], _common(node)
    if name in ("clamp", "clamp_min", "clamp_max", "hardtanh"):
        return _clamp(name, operands, options, result.dtype), result.dtype
    if name == "elu":
        return _elu(operands, result.dtype), result.dtype
    if name == "gelu":
        return _gelu(options), result.dtype
    if name == "leaky_relu":
        slope = literal(operands[1] if len(operands) > 1 else 0.01, result.dtype)
        return f"choose(mask({{0}} > 0), {{0}}, {{0}} * {slope})", result.dtype
    if name in ("remainder", "fmod"):
        return _modulus(name, result.dtype), result.dtype
    raise CannotCompile(f"the operation {name} has no translation to C")


def _refuse_large_products(operands: Sequence[Any]) -> None:
    """Raises CannotCompile where a product may leave 32 bits, as in a hash of tokens."""
    if any(isinstance(operand, int) and abs(operand) > LARGEST_FACTOR for operand in operands):
        raise CannotCompile(f"integers times more than {LARGEST_FACTOR} are not compiled: they may leave 32 bits")


def _common(node: Node) -> torch.dtype:
    """The type in which two operands are compared."""
    operands: list[Any] = [a.meta["val"] if isinstance(a, Node) else a for a in node.args]
    dtype: torch.dtype = torch.result_type(*operands) if len(operands) > 1 else operands[0].dtype
    return dtype


def _division(rounding: str | None, result: Tensor) -> str:
    if rounding is None:
        return "{0} / {1}"
    if result.dtype is torch.int64:
        return "({0} - v_mod({0}, {1})) / not_zero({1})" if rounding == "floor" else "{0} / not_zero({1})"
    return f"v_{rounding}({{0}} / {{1}})"


def _power(operands: Sequence[Any]) -> str:
    exponent = operands[1]
    if not isinstance(exponent, Value):
        found = POWERS.get(exponent)
        if found is not None:
            return found
    return "v_pow({0}, {1})"


def _clamp(name: str, operands: Sequence[Any], options: dict[str, Any], dtype: torch.dtype) -> str:
    given = dict(zip(("self", "min", "max"), operands, strict=False)) | options
    if name == "clamp_max":
        given = {"max": operands[1]}
    text, number = "{0}", 1
    for bound, function in (("min", "larger"), ("max", "smaller")):
        limit = given.get(bound)
        if limit is None:
            continue
        if bound in options and isinstance(limit, Value):
            raise CannotCompile("clamp with a tensor given by name")
        value = f"all_{{t}}({literal(limit, dtype)})" if bound in options else f"{{{number}}}"
        number += bound not in options
        text = f"{function}({value}, {text})"
    return text


def _elu(operands: Sequence[Any], dtype: torch.dtype) -> str:
    alpha, scale, input_scale = (
        [*operands[1:4], 1.0, 1.0, 1.0][:3] if len(operands) >= 4 else ([*operands[1:], 1.0, 1.0, 1.0][:3])
    )
    above, below, inner = (literal(number, dtype) for number in (scale, alpha * scale, input_scale))
    return f"choose(mask({{0}} > 0), {{0}} * {above}, v_expm1({{0}} * {inner}) * {below})"


def _gelu(options: dict[str, Any]) -> str:
    if options.get("approximate", "none") == "tanh":
        inner = "all_{t}(0.7978845608028654) * ({0} + all_{t}(0.044715) * {0} * {0} * {0})"
        return f"all_{{t}}(0.5) * {{0}} * (1 + v_tanh({inner}))"
    return "all_{t}(0.5) * {0} * (1 + v_erf({0} * all_{t}(0.70710678118654752)))"


def _modulus(name: str, dtype: torch.dtype) -> str:
    if dtype is torch.int64:
        return "v_mod({0}, {1})" if name == "remainder" else "{0} % not_zero({1})"
    return "v_fmod({0}, {1})" if name == "fmod" else "{0} - {1} * v_floor({0} / {1})"


def _as_value(operand: Any, result: Tensor, dtype: torch.dtype) -> Value:
    if isinstance(operand, Value):
        return operand
    own = dtype if not (isinstance(operand, float) and dtype in (torch.int64, torch.bool)) else torch.float32
    return constant(operand, (), own)


def _converted(body: Body, value: Value, at: Sequence[Index], c_type: str) -> str:
    """An operand's element, broadcast to the result's shape and in the type of the computation."""
    own = at[len(at) - len(value.shape) :] if value.shape else []
    loaded = value.load(body, [Index() if size == 1 else i for i, size in zip(own, value.shape, strict=True)])
    return loaded if value.c_type == c_type else body.let(c_type, f"to_{c_type}({loaded})")
