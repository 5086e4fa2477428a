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
    Problem,
    Recall,
    Relation,
    Signature,
    UnsupportedSignature,
    find_shapes,
    hookimpl,
)
from capbench_plugins.aot import AttentionOnly
from capbench_plugins.attention import head_grid
from capbench_plugins.mha import Mha, RecallAttention, analyse_recall
from capbench_plugins.relations import RelationScores, analyse_scores


class HeadSplit(Architecture):
    """Attention with totals D_K and D_V to split over the heads: many small ones or few large ones (Adler 2025).

    On relations and recall it is `mha`; on lookup tasks it is `aot` without positions, the model of Wong 2025.
    """

    name: ClassVar[str] = "headsplit"
    family: ClassVar[str] = "attention"

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

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of all positions, on sequences of tokens."""
        heads = self.heads(signature)
        return length * heads.n_heads * (heads.d_qk + heads.d_vo) if isinstance(signature, Lookup) else None

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """On lookup tasks the width of the residual stream; elsewhere only the totals are free."""
        if isinstance(signature, Lookup):
            return ("d_model",)
        return ("d_qk_total",) if isinstance(signature, Relation) else ("d_qk_total", "d_vo_total")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[HeadSplit]:
        """The shapes of mha, which it is outside lookup tasks; on those, or where a total is set, heads as in aot."""
        if not isinstance(signature, Lookup) and not self.model_fields_set & {"d_qk_total", "d_vo_total"}:
            return self._shapes_of_mha(signature, n_parameters)
        grid = head_grid(signature)

        def are_useful(shape: HeadSplit) -> bool:
            heads = shape.heads(signature)
            return max(heads.d_qk, heads.d_vo) <= heads.d_model

        return find_shapes(self, signature, n_parameters, grid, fields=totals, is_useful=are_useful)

    def _shapes_of_mha(self, signature: Relation | Recall, n_parameters: int) -> Sequence[HeadSplit]:
        """Each shape of mha as totals, in the same order: one model under two names has one capacity."""
        own = Mha.model_construct(
            _fields_set=self.model_fields_set & Mha.model_fields.keys(),
            n_heads=self.n_heads,
            d_qk=max(1, self.d_qk_total // self.n_heads),
            d_vo=max(1, self.d_vo_total // self.n_heads),
            init_scale=self.init_scale,
        )
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        shapes = [totals(dict(shape)) for shape in own.shapes(signature, n_parameters)]
        names = ("n_heads", "d_qk_total", "d_vo_total", "init_scale")
        return [HeadSplit(**{**{name: shape[name] for name in names}, **kept}) for shape in shapes]

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
        is_lookup = isinstance(signature, Lookup)
        return Heads(self.n_heads, d, d_qk, d_vo, has_skip=is_lookup, has_unembedding=is_lookup)

    def analyse(self, module: nn.Module, problem: Problem) -> dict[str, float]:
        """As in mha: saturation and the rank of the head outputs on recall, margin and rounding on relations."""
        if isinstance(module, RelationScores):
            return analyse_scores(module, problem)
        return analyse_recall(module, problem) if isinstance(module, RecallAttention) else {}

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
