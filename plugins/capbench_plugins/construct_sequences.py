"""Weights of `mha` that recall any labels of H (min(n, d_qk) - 1) + 1 sequences: saturation.

Idea: Mahdavi, Liao, Thrampoulidis 2024, arXiv 2306.02010, proof of Theorem 1 [paper]; the algebra below is [derived].
With r = min(n, d_qk), every head gets r - 1 examples S of its own, and one example belongs to no head. On S the head
attends with random logits; on all other examples a large multiple of a rank-1 map saturates its softmax. The rows of
the head outputs Z are then independent, and the values solve Z w = y exactly.

Needs float64: Z has a condition number of 1e2 to 1e7, larger with a shared context than with one per example.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from capbench import CannotConstruct, Heads, Problem, Recall, Task
from capbench_plugins.construct_codes import class_codes, readout, width_needed

SATURATION = 100.0
"""Size of the logits where a head should saturate. A larger one would cost precision where it should not."""
LOGIT_STD = 2.0
"""Standard deviation of the random logits on a head's own examples."""


def reach(task: Task, heads: Heads) -> int:
    """H (min(n, d_qk) - 1) + 1 examples, or as many as the task has."""
    signature = _signature(task)
    if signature.n_context >= signature.d_input:
        raise CannotConstruct(
            f"construct needs contexts of n < d independent vectors, got n = {signature.n_context} of width "
            f"{signature.d_input}; raise task.d_input"
        )
    needed = width_needed(signature.n_classes)
    if heads.d_vo < needed:
        raise CannotConstruct(
            f"construct encodes {signature.n_classes} classes as points on a circle, which takes d_vo >= {needed}, "
            f"got {heads.d_vo}; set arch.d_vo={needed} (d_vo=1 is enough for task.n_classes=1 or 2)"
        )
    return min(task.max_load, heads.n_heads * (min(signature.n_context, heads.d_qk) - 1) + 1)


def weights(task: Task, heads: Heads, module: nn.Module, problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """Attention that makes the examples independent, then values that fit their labels."""
    is_fact = problem.mask > 0
    contexts, queries = (tensor.double().cpu() for tensor in problem.inputs)
    queries, targets = queries[is_fact], problem.targets[is_fact].cpu()
    contexts = (contexts if len(contexts) == 1 else contexts[is_fact]).expand(len(queries), -1, -1)
    W_Q, W_K = separating_attention(contexts, queries, heads, generator)
    Z = head_outputs(contexts, queries, W_Q, W_K)
    W_V, W_O = _values(Z, targets, _signature(task).n_classes, heads, generator)
    return {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}


def head_outputs(contexts: Tensor, queries: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    """Z: each head's attention-weighted context, before W_V; (T, n, d) contexts, (T, d) queries -> (T, heads * d)."""
    probes = queries @ W_Q @ W_K.mT / math.sqrt(W_Q.shape[-1])  # (heads, T, d)
    attention = torch.einsum("htd,tnd->htn", probes, contexts).softmax(dim=-1)  # (heads, T, n)
    return torch.einsum("htn,tnd->thd", attention, contexts).flatten(1)


def separating_attention(
    contexts: Tensor, queries: Tensor, heads: Heads, generator: Generator
) -> tuple[Tensor, Tensor]:
    """W_Q, W_K of all heads: W_Q W_Kᵀ is a random map on a head's own examples plus a saturating one on the others."""
    n_own = min(contexts.shape[1], heads.d_qk) - 1
    W_Q, W_K = torch.zeros(2, heads.n_heads, heads.d_model, heads.d_qk, dtype=torch.float64)
    for h in range(heads.n_heads):
        own = slice(h * n_own, (h + 1) * n_own)
        query_map, key_map = _head_maps(contexts[own], queries[own], generator)
        width = key_map.shape[1]
        W_Q[h, :, :width], W_K[h, :, :width] = query_map * math.sqrt(heads.d_qk), key_map
    return W_Q, W_K


def _head_maps(contexts: Tensor, queries: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """One head's (d, k + 1) query and key maps for its k own examples, without the softmax scale."""
    k, n, d = contexts.shape
    duals = torch.linalg.pinv(queries)  # (d, k): e_s · dual_t = 1 iff s = t
    logits = LOGIT_STD * torch.randn(k, n, 1, dtype=torch.float64, generator=generator)
    keys = (torch.linalg.pinv(contexts) @ logits).squeeze(2)  # (k, d): E_t key_t = logits_t
    off, saturating = torch.randn(2, d, dtype=torch.float64, generator=generator)
    for _ in range(2):  # twice, to remove what rounding left in the span of the own queries
        off = off - duals @ (queries @ off)
    return torch.cat([duals, SATURATION * off[:, None]], dim=1), torch.cat([keys, saturating[None]]).T


def _values(Z: Tensor, targets: Tensor, n_classes: int, heads: Heads, generator: Generator) -> tuple[Tensor, Tensor]:
    """W_V that maps Z to each label's code (or to the target itself), W_O that maps codes to logits."""
    if n_classes == 1:
        outputs, W_read = targets.double()[:, None], torch.ones(1, 1, dtype=torch.float64)
    else:
        codes = class_codes(n_classes, width_needed(n_classes), generator)
        outputs, W_read = codes[targets], readout(codes)  # (T, width), (width, n_classes)
    width = len(W_read)
    W_V = torch.zeros(heads.n_heads, heads.d_model, heads.d_vo, dtype=torch.float64)
    W_O = torch.zeros(heads.n_heads, heads.d_vo, n_classes, dtype=torch.float64)
    W_V[:, :, :width] = least_squares(Z, outputs).view(heads.n_heads, heads.d_model, width)
    W_O[:, :width] = W_read
    return W_V, W_O


def least_squares(features: Tensor, targets: Tensor) -> Tensor:
    """The minimum-norm least-squares solution of features @ solution = targets."""
    solution: Tensor = torch.linalg.lstsq(features, targets, driver="gelsd").solution
    return solution


def _signature(task: Task) -> Recall:
    signature = task.signature
    assert isinstance(signature, Recall)
    return signature
