"""Linear attention in layers: a recurrence that adds up pairs of keys and values, with a choice of features."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.heads import HeadMixer, PairedHeads, per_head

Feature = Literal["identity", "elu", "taylor"]


class LinearMixer(HeadMixer):
    """Layers of linear attention, with the features of Katharopoulos et al. 2020 or of Based (Arora et al. 2024).

    `linear_attention` is one layer of the second for every signature; this one has depth, as any `Mixer`.
    """

    name: ClassVar[str] = "linear_mixer"
    family: ClassVar[str] = "recurrence"

    feature: Feature = Field(
        "identity",
        description="identity: keys are added as they are; elu: normalised, elu + 1 (arXiv 2006.16236); taylor: "
        "normalised, exp to second order (arXiv 2402.18668), with about d_qk² / 2 features",
    )

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return LinearHeads(d_model, self.n_heads, self.d_qk, self.d_vo, self.feature)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The matrix of each head, and the sum of its features where weights are normalised, in all layers."""
        if self.read != "last":
            return None
        return self.n_layers * self.n_heads * state_of_head(self.feature, self.d_qk, self.d_vo)


class LinearHeads(PairedHeads):
    """y_s = S_s φ(q_s), S_s = S_{s-1} + v_s φ(k_s)ᵀ, or that over z_s φ(q_s), z_s = z_{s-1} + φ(k_s)ᵀ.

    Computed from φ(q)·φ(k) for all pairs of positions, which is the same and faster on short sequences.
    """

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int, feature: Feature) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.feature = feature

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, (batch, length, heads, width)."""
        if self.feature != "elu":
            return super().project(x)
        q, k, v = (per_head(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        return F.elu(q) + 1, F.elu(k) + 1, v

    def kernel(self, scores: Tensor) -> Tensor:
        """φ(q)·φ(k) from q·k; of elu + 1, whose features are in q and k already, as it is."""
        return 1 + scores + scores.square() / 2 if self.feature == "taylor" else scores

    def weights(self, scores: Tensor, is_later: Tensor) -> Tensor:
        """The kernel of the positions so far, over its sum where the feature is positive."""
        a = self.kernel(scores).masked_fill(is_later, 0.0)
        return a if self.feature == "identity" else a / a.sum(dim=-1, keepdim=True)

    def pair_weights(self, to_first: Tensor, to_last: Tensor) -> tuple[Tensor, Tensor]:
        """The same for two positions."""
        first, last = self.kernel(to_first), self.kernel(to_last)
        return (first, last) if self.feature == "identity" else (first / (first + last), last / (first + last))


def n_features(feature: Feature, d_qk: int) -> int:
    """Different features of a key: all products of at most two of its elements under `taylor`."""
    return (d_qk + 1) * (d_qk + 2) // 2 if feature == "taylor" else d_qk


def state_of_head(feature: Feature, d_qk: int, d_vo: int) -> int:
    """Elements of S, and of z where there is one."""
    return n_features(feature, d_qk) * (d_vo if feature == "identity" else d_vo + 1)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Linear attention in layers."""
    return [LinearMixer]
