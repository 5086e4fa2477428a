"""Families of architectures: the groups of legends and tables, each with a shape for its points."""

from __future__ import annotations

from capbench.documents.result import Result
from capbench.documents.text import plain

OTHER = "other"
FAMILIES = {
    "attention": (
        "aot differential_attention gqa headsplit hopfield latent_attention linear_attention mha "
        "relu_attention sigmoid_attention transformer uniform_attention"
    ),
    "recurrence": "deltanet gated_deltanet gla hyena rwkv7 ssd",
    "mlp": "folded_mlp gated_mlp kan mlp moe perceptron",
    "memory": "bilinear linear_memory product_key_memory",
}
"""Architectures of records that were written before a record named its family."""
SHAPES = {"attention": "circle", "recurrence": "square", "mlp": "triangle-up", "memory": "diamond", OTHER: "cross"}
"""The symbol of each family, in Vega's words; families of plugins share the last one."""
FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}
MAX_LENGTH = 40


def family_of(result: Result) -> str:
    """The family that the record names; for older records that of the built-in with this name."""
    stated = plain(" ".join(result.architecture.family.split()))[:MAX_LENGTH]
    return stated or FAMILY_OF.get(result.architecture.name, OTHER)


def family_order(family: str) -> tuple[int, str]:
    """Sort key: the families of the built-ins first, then others by name."""
    known = list(SHAPES)[:-1]
    return (known.index(family) if family in known else len(known) + (family == OTHER), family)


def shape_of(family: str) -> str:
    """The symbol of the family's points."""
    return SHAPES.get(family, SHAPES[OTHER])
