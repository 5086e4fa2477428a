"""Mixer and PairScorer: architectures for authors who have a layer, and want capbench to add the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from capbench.contract.architecture import Architecture
from capbench.contract.shapes import find_shapes
from capbench.contract.signatures import Lookup, Recall, Relation, Signature
from capbench.errors import UnsupportedSignature

if TYPE_CHECKING:
    from torch import nn

Norm = Literal["none", "rms", "layer"]
Mlp = Literal["none", "gelu", "relu", "swiglu", "bilinear"]
MOST_WIDTH, MOST_HIDDEN = 4096, 65536
INIT_SCALES = (0.5, 1.0)
"""Initial scales to choose from: on pairs of tokens, small models of ten layers learned most at one of them."""


class Mixer(Architecture):
    """An architecture around a layer that mixes positions: a subclass gives the layer, and inherits all else.

    A lookup task's tokens are embedded. On a recall task the vectors of the context come first and the query last,
    all through one input map. The layers follow, then an unembedding of what is read.
    """

    d_model: int = Field(16, ge=1, le=MOST_WIDTH, description="width of the vectors that the layers read and write")
    n_layers: int = Field(1, ge=1, le=64, description="layers, one after the other")
    positions: bool = Field(True, description="whether a learned vector is added at each position")
    residual: bool = Field(True, description="whether the input of a layer, or of its MLP, is added to its output")
    norm: Norm = Field("none", description="how the input of a layer, of its MLP and of the unembedding is normalised")
    mlp: Mlp = Field("none", description="the MLP after each layer; swiglu and bilinear are gated")
    d_mlp: int = Field(32, ge=1, le=MOST_HIDDEN, description="hidden width of the MLP; not used with mlp=none")
    read: Literal["last", "mean"] = Field(
        "last", description="what is unembedded: the last position, or the mean of all, for layers that are not causal"
    )
    init_scale: float = Field(1.0, gt=0, description="standard deviation of the initial embeddings")

    @abstractmethod
    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A fresh layer, (batch, length, d_model) -> (batch, length, d_model).

        For speed the layer may also define `project(x)`, the part that treats each position alone, as a tuple of
        tensors; `mix(*parts)`, the rest; `mix_last(*parts)`, the rest at the last position, (batch, d_model); and
        `mix_pairs(first, last)`, the same for every pair of a first and a last token, (n, m, d_model), from the parts
        of n and of m sequences of length 1.
        """

    def mixer_at(self, layer: int, d_model: int, length: int) -> nn.Module:
        """The layer of that number, from 0: `mixer`, unless a subclass has layers of different kinds."""
        return self.mixer(d_model, length)

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup or recall task."""
        from capbench.contract.mixer_modules import TokenModel, VectorModel

        if isinstance(signature, Lookup):
            if signature.n_reads > 1 and self.read == "mean":
                raise UnsupportedSignature(
                    "the mean of all positions is one answer, the task asks for several: read=last"
                )
            return TokenModel(self, signature)
        if isinstance(signature, Recall):
            return VectorModel(self, signature)
        raise UnsupportedSignature(
            f"{self.name} reads sequences, and {type(signature).__name__} tasks give a set of items; "
            "capbench list shows what fits"
        )

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """The values of each field that `shapes` chooses from; a subclass adds its own fields to these."""
        most = min(signature.n_tokens, MOST_WIDTH) if isinstance(signature, Lookup) else MOST_WIDTH
        if self.mlp == "none":
            return {"d_model": range(1, MOST_WIDTH + 1), "init_scale": INIT_SCALES}
        widths = {"d_mlp": range(1, MOST_HIDDEN + 1), "d_model": range(min(4, most), most + 1)}
        return {**widths, "init_scale": INIT_SCALES}

    def is_useful(self, signature: Signature) -> bool:
        """Whether these widths can help; False leaves a point of the grid out of `shapes`."""
        return True

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Architecture]:
        """Layers, and MLPs where there are any, of several widths and initial scales."""
        if isinstance(signature, Relation):
            return ()
        grid = self.shape_grid(signature)
        return find_shapes(self, signature, n_parameters, grid, is_useful=lambda shape: shape.is_useful(signature))


class PairScorer(Architecture):
    """An architecture around a module that scores pairs of vectors: for relation tasks.

    A learned scale, which stays positive, and a learned threshold follow: an edge is predicted above the threshold.
    """

    @abstractmethod
    def scorer(self, d_item: int) -> nn.Module:
        """A fresh module, (n_items, d_item) vectors -> (n_items, n_items) scores."""

    def build(self, signature: Signature) -> nn.Module:
        """The module for a relation task."""
        from capbench.contract.mixer_modules import ThresholdedScores

        if not isinstance(signature, Relation):
            raise UnsupportedSignature(
                f"{self.name} scores pairs of vectors, and {type(signature).__name__} tasks ask for classes; "
                "capbench list shows what fits"
            )
        return ThresholdedScores(self.scorer(signature.d_item))

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """The values of each field that `shapes` chooses from; none unless a subclass gives some."""
        return {}

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Architecture]:
        """The points of `shape_grid` with the count."""
        grid = self.shape_grid(signature)
        return find_shapes(self, signature, n_parameters, grid) if grid else ()
