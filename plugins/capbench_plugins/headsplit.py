"""Attention of a fixed total width, split over more or fewer heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from capbench import (
    Architecture,
    Heads,
    Lookup,
    Recall,
    Relation,
    Signature,
    UnsupportedSignature,
    find_shapes,
    hookimpl,
)
from capbench_plugins.aot import AttentionOnly
from capbench_plugins.attention import INIT_SCALES, head_grid
from capbench_plugins.mha import RecallAttention
from capbench_plugins.relations import RelationScores


class HeadSplit(Architecture):
    """Attention with totals D_K and D_V to split over the heads: many small ones or few large ones (Adler 2025).

    On relations and recall it is `mha`; on lookup tasks it is `aot` without positions, the model of Wong 2025.
    """

    name: ClassVar[str] = "headsplit"

    d_model: int = Field(16, ge=1, le=4096, description="d: width of embeddings and residual stream, on lookup tasks")
    n_heads: int = Field(4, ge=1, le=4096, description="H: heads over which the totals are split; must divide both")
    d_qk_total: int = Field(32, ge=1, le=65536, description="D_K: query/key width of all heads together")
    d_vo_total: int = Field(32, ge=1, le=65536, description="value/output width of all heads together")
    diagonal: bool = Field(
        False,
        description="sets a head's d_qk to d - d_vo + 1, ignoring d_qk_total: d_vo_total then moves along Wong's "
        "diagonal of equal parameters",
    )
    init_scale: float = Field(
        2.0, gt=0, description="as in mha: scale of the initial query and key weights; not used on lookup tasks"
    )

    def build(self, signature: Signature) -> nn.Module:
        """The module for any of the three signatures."""
        heads = self.heads(signature)
        if isinstance(signature, Relation):
            return RelationScores(heads.d_model, heads.n_heads, heads.d_qk, self.init_scale)
        shape = (heads.n_heads, heads.d_qk, heads.d_vo)
        if isinstance(signature, Lookup):
            return AttentionOnly(signature, heads.d_model, *shape)
        return RecallAttention(heads.d_model, signature.n_classes, *shape, self.init_scale)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """On lookup tasks the width of the residual stream; elsewhere only the totals are free."""
        if isinstance(signature, Lookup):
            return ("d_model",)
        return ("d_qk_total",) if isinstance(signature, Relation) else ("d_qk_total", "d_vo_total")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[HeadSplit]:
        """As in mha or aot: more or fewer heads, no wider than what they read; the totals follow."""
        grid = head_grid(signature)
        if isinstance(signature, Recall):
            grid["init_scale"] = INIT_SCALES

        def are_useful(shape: HeadSplit) -> bool:
            heads = shape.heads(signature)
            return max(heads.d_qk, heads.d_vo) <= heads.d_model

        return find_shapes(self, signature, n_parameters, grid, fields=totals, is_useful=are_useful)

    def heads(self, signature: Signature) -> Heads:
        """Its heads as the theorems count them."""
        if isinstance(signature, Relation):
            if self.diagonal:
                raise UnsupportedSignature(
                    "the diagonal trades d_qk for d_vo, and a relation has no values; set arch.diagonal=false"
                )
            return Heads(self.n_heads, signature.d_item, self._share("d_qk_total"), d_vo=0)
        d, d_vo = self._width(signature), self._share("d_vo_total")
        d_qk = self._diagonal_d_qk(d, d_vo) if self.diagonal else self._share("d_qk_total")
        return Heads(self.n_heads, d, d_qk, d_vo, has_skip=isinstance(signature, Lookup))

    def _width(self, signature: Lookup | Recall) -> int:
        return signature.d_input if isinstance(signature, Recall) else self.d_model

    def _share(self, field: str) -> int:
        """One head's share of a total."""
        total: int = getattr(self, field)
        if total % self.n_heads:
            raise UnsupportedSignature(
                f"n_heads must divide {field}, got {total} over {self.n_heads} heads; "
                f"the nearest that fits is {max(1, round(total / self.n_heads)) * self.n_heads}"
            )
        return total // self.n_heads

    def _diagonal_d_qk(self, d: int, d_vo: int) -> int:
        if d_vo > d:
            raise UnsupportedSignature(
                f"on the diagonal d_vo goes from 1 to d = {d}, got {d_vo} per head; lower d_vo_total"
            )
        return d - d_vo + 1


def totals(point: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of heads whose widths are given for one of them."""
    fields = {name: value for name, value in point.items() if name not in ("d_qk", "d_vo")}
    widths = {name: point["n_heads"] * point[name] for name in ("d_qk", "d_vo") if name in point}
    return fields | {f"{name}_total": width for name, width in widths.items()}


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Attention of fixed total widths."""
    return [HeadSplit]
