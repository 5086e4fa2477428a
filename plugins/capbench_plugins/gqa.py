"""Grouped-query attention: several query heads share one head of keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator
from torch import Tensor, nn

from capbench import Architecture, Heads, Lookup, Recall, Relation, Signature, find_shapes, hookimpl
from capbench_plugins.aot import AttentionOnly
from capbench_plugins.attention import Maps, head_grid, heads_fit, init_scales
from capbench_plugins.mha import RecallAttention
from capbench_plugins.relations import RelationScores

GROUP_SIZES = (2, 3, 4)
"""Query heads that share one head of keys and values, in the shapes of a parameter count."""


class Gqa(Architecture):
    """Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245); one group is multi-query (1911.02150)."""

    name: ClassVar[str] = "gqa"
    family: ClassVar[str] = "attention"

    d_model: int = Field(10, ge=1, le=4096, description="d: width of embeddings and residual stream, on lookup tasks")
    n_heads: int = Field(4, ge=1, le=4096, description="H: heads of queries")
    n_kv_heads: int = Field(
        2, ge=1, le=4096, description="heads of keys and values, must divide n_heads; 1: multi-query"
    )
    d_qk: int = Field(8, ge=1, le=4096, description="query/key width of a head")
    d_vo: int = Field(8, ge=1, le=4096, description="value/output width of a head, where values are used")
    positions: bool = Field(True, description="whether a learned vector is added at each position, on lookup tasks")
    init_scale: float = Field(
        2.0, gt=0, description="as in mha: scale of the initial query and key weights; not used on lookup tasks"
    )

    @model_validator(mode="after")
    def _groups_are_even(self) -> Gqa:
        if self.n_heads % self.n_kv_heads:
            fitting = [n for n in range(1, self.n_heads + 1) if self.n_heads % n == 0]
            raise ValueError(
                f"n_kv_heads must divide n_heads, got {self.n_kv_heads} for {self.n_heads}; choose from {fitting}"
            )
        return self

    def build(self, signature: Signature) -> nn.Module:
        """The module for any of the three signatures: like `aot` on tokens, else like `mha`."""
        heads = (self.n_heads, self.n_kv_heads, self.d_qk)
        if isinstance(signature, Relation):
            return GroupedScores(signature.d_item, *heads, self.init_scale)
        if isinstance(signature, Recall):
            return GroupedRecall(signature.d_input, signature.n_classes, *heads, self.d_vo, self.init_scale)
        return GroupedTokens(signature, self.d_model, *heads, self.d_vo, self.positions)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Width of the residual stream, where it is free, then of a head."""
        if isinstance(signature, Lookup):
            return ("d_model", "d_vo")
        return ("d_qk",) if isinstance(signature, Relation) else ("d_qk", "d_vo")

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The shared keys and values of all positions, on sequences of tokens."""
        return length * self.n_kv_heads * (self.d_qk + self.d_vo) if isinstance(signature, Lookup) else None

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Gqa]:
        """More or fewer groups of two to four heads, no wider than what they read, at several initial scales."""
        grid = head_grid(signature)
        grid = {"n_kv_heads": grid.pop("n_heads"), "heads_per_group": GROUP_SIZES, **grid}
        if not isinstance(signature, Lookup):
            grid["init_scale"] = init_scales(signature)
        is_useful = heads_fit if isinstance(signature, Lookup) else None
        return find_shapes(self, signature, n_parameters, grid, fields=grouped, is_useful=is_useful)

    def heads(self, signature: Signature) -> Heads | None:
        """Its heads where theorems about independent heads still hold; None where values are shared."""
        if isinstance(signature, Relation):
            return Heads(self.n_heads, signature.d_item, self.d_qk, d_vo=0)
        if self.n_kv_heads < self.n_heads:
            return None
        d = signature.d_input if isinstance(signature, Recall) else self.d_model
        is_lookup = isinstance(signature, Lookup)
        return Heads(self.n_heads, d, self.d_qk, self.d_vo, 1, is_lookup, is_lookup and self.positions, is_lookup)


def grouped(point: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of groups of which the size is given."""
    fields = {name: value for name, value in point.items() if name != "heads_per_group"}
    return fields | {"n_heads": point["n_kv_heads"] * point["heads_per_group"]}


def repeat_groups(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Maps:
    """The maps with each key/value head repeated for the query heads of its group."""
    return W_Q, _repeat_heads(W_K, W_Q), _repeat_heads(W_V, W_Q), W_O


def _repeat_heads(W: Tensor, W_Q: Tensor) -> Tensor:
    """(n_kv_heads, …) -> (n_heads, …); the heads of a group are adjacent."""
    return W.repeat_interleave(len(W_Q) // len(W), dim=0)


class GroupedTokens(AttentionOnly):
    """The attention-only transformer with shared keys and values."""

    def __init__(
        self, signature: Lookup, d: int, n_heads: int, n_kv_heads: int, d_qk: int, d_vo: int, positions: bool
    ) -> None:
        super().__init__(signature, d, n_heads, d_qk, d_vo, positions)
        self.W_K, self.W_V = keep_first_heads(self.W_K, n_kv_heads), keep_first_heads(self.W_V, n_kv_heads)

    def maps(self) -> Maps:
        """W_K and W_V repeated for each query head."""
        return repeat_groups(*super().maps())


class GroupedRecall(RecallAttention):
    """Attention of a query over its context with shared keys and values."""

    def __init__(
        self, d: int, n_classes: int, n_heads: int, n_kv_heads: int, d_qk: int, d_vo: int, init_scale: float
    ) -> None:
        super().__init__(d, n_classes, n_heads, d_qk, d_vo, init_scale)
        self.W_K, self.W_V = keep_first_heads(self.W_K, n_kv_heads), keep_first_heads(self.W_V, n_kv_heads)

    def maps(self) -> Maps:
        """W_K and W_V repeated for each query head."""
        return repeat_groups(*super().maps())


class GroupedScores(RelationScores):
    """Scores between items with shared keys."""

    def __init__(self, d_item: int, n_heads: int, n_kv_heads: int, d_qk: int, init_scale: float) -> None:
        super().__init__(d_item, n_heads, d_qk, init_scale)
        self.W_K = keep_first_heads(self.W_K, n_kv_heads)

    def head_scores(self, items: Tensor) -> Tensor:
        """(x_i W_Q)·(x_j W_K) in each head, (heads, items, items)."""
        keys = _repeat_heads(items @ self.W_K, self.W_Q)  # (heads, items, d_qk)
        return items @ self.W_Q @ keys.mT


def keep_first_heads(W: Tensor, n_heads: int) -> nn.Parameter:
    """The first heads of freshly drawn weights, as a new parameter."""
    return nn.Parameter(W[:n_heads].detach().clone())


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Grouped-query attention."""
    return [Gqa]
