"""Weights of `aot` that recall any H d_h + d associations of pairs of tokens.

The number is Theorem 1 of Dana, Pydi & Chevaleyre 2025, arXiv 2411.10115 [paper]; these explicit weights are [derived].
Embeddings x̂, a rank-1 W_Q W_Kᵀ and W_V are drawn at random. On the stored pairs, the head outputs F next to the skip
give G = [F, x̂_last], of rank H d_h + d, so that G [W_O; M] = Y has an exact solution for any target vectors Y.
Embeddings x̂ M, with W_Q, W_K and W_V multiplied by M⁻¹, then leave F unchanged and make the skip x̂_last M.

The rank of the skip is min(d, N) only if the facts end in that many different tokens, as random ones nearly always do.
The theorem assumes positions. Without them a head adds only multiples of x̂_first - x̂_last: pairs of equal tokens then
depend on the skip, which distinguishes min(d, N) of them, and N <= d costs each head a dimension. Where this matters,
the fit is not exact, and success is measured, not guaranteed [derived].

Needs float64: at the sizes of the paper G has a condition number of up to 1e7.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import normalize

from capbench import CannotConstruct, Heads, Lookup, Problem, Task
from capbench_plugins.construct_codes import class_codes, margin, readout, width_needed
from capbench_plugins.construct_sequences import head_outputs, least_squares

JITTER = 0.1
"""Norm of the noise on target vectors, relative to the root of their margin: keeps the argmax and gives M full rank."""


def reach(task: Task, heads: Heads) -> int:
    """H d_h + d associations, or as many as the task has; widths beyond the number of tokens add nothing."""
    signature = _signature(task)
    if getattr(task, "target", "token") != "token":
        raise CannotConstruct("construct answers a pair with one token; set task.target=token")
    if heads.n_layers != 1:
        raise CannotConstruct(f"construct covers aot with one layer, got {heads.n_layers}; set arch.n_layers=1")
    if heads.d_model < width_needed(signature.n_classes):
        raise CannotConstruct(
            f"in one dimension argmax can select only two tokens, got {signature.n_classes}; set arch.d_model=2 or more"
        )
    d = min(heads.d_model, signature.n_tokens)
    return min(task.max_load, heads.n_heads * min(heads.d_vo, d) + d)


def weights(task: Task, heads: Heads, module: nn.Module, problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """Random features of the stored pairs, an exact fit of their answers, and the embeddings transformed to match."""
    signature, is_fact = _signature(task), problem.mask > 0
    tokens, answers = problem.inputs[0][is_fact].cpu(), problem.targets[is_fact].cpu()
    codes = class_codes(signature.n_classes, heads.d_model, generator)
    embedding = _draw_embedding(signature, heads, module, generator)
    attention = _draw_attention(heads, generator)
    x = embedding["W_E"][tokens] + embedding.get("P", 0.0)  # (T, length, d)
    F = _features(x, **attention)
    W_O, M = _fit(F, x[:, -1], _add_jitter(codes, answers, generator))
    return {
        **{name: vectors @ M for name, vectors in embedding.items()},
        **{name: torch.linalg.solve(M, maps) for name, maps in attention.items()},
        "W_O": W_O.view(heads.n_heads, heads.d_vo, heads.d_model),
        "W_U": readout(codes),
    }


def _draw_embedding(signature: Lookup, heads: Heads, module: nn.Module, generator: Generator) -> dict[str, Tensor]:
    """Random embeddings, and positions if the module has them."""
    rows = {"W_E": signature.n_tokens, "P": signature.length}
    trained = dict(module.named_parameters())
    return {name: _randn(n, heads.d_model, generator=generator) for name, n in rows.items() if name in trained}


def _draw_attention(heads: Heads, generator: Generator) -> dict[str, Tensor]:
    """Query, key and value maps; W_Q W_Kᵀ has rank 1, so that a query/key width of 1 is enough."""
    h, d = heads.n_heads, heads.d_model
    W_Q, W_K = torch.zeros(2, h, d, heads.d_qk, dtype=torch.float64)
    W_Q[:, :, 0] = _randn(h, d, generator=generator) * (math.sqrt(heads.d_qk) / d)  # scores of order 1
    W_K[:, :, 0] = _randn(h, d, generator=generator)
    return {"W_Q": W_Q, "W_K": W_K, "W_V": _randn(h, d, heads.d_vo, generator=generator) / math.sqrt(d)}


def _features(x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
    """F: the head outputs at the last position before W_O, (T, heads * d_vo)."""
    attended = head_outputs(x, x[:, -1], W_Q, W_K).view(len(x), *W_V.shape[:2])  # (T, heads, d)
    return torch.einsum("thd,hdv->thv", attended, W_V).flatten(1)


def _add_jitter(codes: Tensor, answers: Tensor, generator: Generator) -> Tensor:
    """Target vectors at the last position: the answers' codes plus noise, or few answers would make M singular."""
    noise = normalize(_randn(len(answers), codes.shape[1], generator=generator), dim=1)
    return codes[answers] + JITTER * math.sqrt(margin(codes)) * noise


def _fit(F: Tensor, last: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """W_O and M with F W_O + last M = targets, with M as near to the identity as possible."""
    correction = least_squares(torch.cat([F, last], dim=1), targets - last)
    W_O, shift = correction[: F.shape[1]], correction[F.shape[1] :]
    return W_O, torch.eye(last.shape[1], dtype=torch.float64) + shift


def _randn(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _signature(task: Task) -> Lookup:
    signature = task.signature
    assert isinstance(signature, Lookup)
    return signature
