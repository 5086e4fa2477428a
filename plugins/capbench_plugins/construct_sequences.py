"""Weights of `mha` that recall any labels of H (min(n, d_qk) - 1) + 1 sequences: saturation.

Idea: Mahdavi, Liao, Thrampoulidis 2024, arXiv 2306.02010, proof of Theorem 1 [paper]; the algebra below is [derived].
With r = min(n, d_qk), every head takes r - 1 examples S of its own and one extra is left to none. On S the head
attends by drawn logits; everywhere else a large multiple of one rank-1 map saturates its softmax. The head outputs Z
of all examples are then independent rows, and the values solve Z w = y exactly.

Needs float64: Z has a condition number of 1e2 to 1e7, more with a shared context than with one for each example.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from capbench import CannotConstruct, Heads, Problem, Recall, Task
from capbench_plugins.construct_codes import class_codes, readout, width_needed

SATURATION = 100.0
"""Size of the logits where a head should saturate. More would cost digits where it should not."""
LOGIT_STD = 2.0
"""Spread of the drawn logits on a head's own examples."""


def reach(task: Task, heads: Heads) -> int:
    """H (min(n, d_qk) - 1) + 1 examples, or as many as the task has."""
    signature = _signature(task)
    needed = width_needed(signature.n_classes)
    if heads.d_vo < needed:
        raise CannotConstruct(
            f"construct names {signature.n_classes} classes by points on a circle, which takes d_vo >= {needed}, "
            f"got {heads.d_vo}; set arch.d_vo={needed} (d_vo=1 is enough for task.n_classes=1 or 2)"
        )
    return min(task.max_load, heads.n_heads * (min(signature.n_context, heads.d_qk) - 1) + 1)


def weights(task: Task, heads: Heads, module: nn.Module, problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """Attention that sets the examples apart, then values that fit their labels."""
    facts = problem.mask > 0
    contexts, queries = (tensor.double().cpu() for tensor in problem.inputs)
    queries, targets = queries[facts], problem.targets[facts].cpu()
    contexts = (contexts if len(contexts) == 1 else contexts[facts]).expand(len(queries), -1, -1)
    W_Q, W_K = separating_attention(contexts, queries, heads, generator)
    Z = head_outputs(contexts, queries, W_Q, W_K)
    W_V, W_O = _values(Z, targets, _signature(task).n_classes, heads, generator)
    return {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}


def head_outputs(contexts: Tensor, queries: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    """Z: what each head attends to, before its values; (T, n, d) contexts and (T, d) queries -> (T, heads * d)."""
    probes = queries @ W_Q @ W_K.mT / math.sqrt(W_Q.shape[-1])  # (heads, T, d)
    attention = torch.einsum("htd,tnd->htn", probes, contexts).softmax(dim=-1)
    return torch.einsum("htn,tnd->thd", attention, contexts).flatten(1)


def frozen_misfit(contexts: Tensor, queries: Tensor, targets: Tensor, heads: Heads, generator: Generator) -> float:
    """The least root-mean-square error on the targets when attention is drawn at random and only values are fitted.

    On a shared context rank(Z) <= H (n - 1) + 1 whatever the attention [Mahdavi et al. 2024, Prop 2]: attention that
    does not know the labels fits that many generic targets and not one more.
    """
    W_Q, W_K = torch.randn(2, heads.n_heads, heads.d_model, heads.d_qk, dtype=torch.float64, generator=generator)
    W_Q = W_Q / heads.d_model  # logits of order 1
    Z = head_outputs(contexts.expand(len(queries), -1, -1), queries, W_Q, W_K)
    return float((Z @ least_squares(Z, targets) - targets).square().mean().sqrt())


def separating_attention(
    contexts: Tensor, queries: Tensor, heads: Heads, generator: Generator
) -> tuple[Tensor, Tensor]:
    """W_Q, W_K of every head: W_Q W_Kᵀ is the drawn map on the head's own examples plus the saturating one off them."""
    share = min(contexts.shape[1], heads.d_qk) - 1
    W_Q, W_K = torch.zeros(2, heads.n_heads, heads.d_model, heads.d_qk, dtype=torch.float64)
    for h in range(heads.n_heads):
        own = slice(h * share, (h + 1) * share)
        to_codes, keys = _head(contexts[own], queries[own], generator)
        width = keys.shape[1]
        W_Q[h, :, :width], W_K[h, :, :width] = to_codes * math.sqrt(heads.d_qk), keys
    return W_Q, W_K


def _head(contexts: Tensor, queries: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """One head's (d, k + 1) query and key maps for its k own examples, softmax scale left out."""
    k, n, d = contexts.shape
    duals = torch.linalg.pinv(queries)  # (d, k): e_s · dual_t = 1 iff s = t
    logits = LOGIT_STD * torch.randn(k, n, 1, dtype=torch.float64, generator=generator)
    keys = (torch.linalg.pinv(contexts) @ logits).squeeze(2)  # (k, d): E_t key_t = logits_t
    off, saturating = torch.randn(2, d, dtype=torch.float64, generator=generator)
    for _ in range(2):  # twice, so that rounding leaves nothing of the span of the own queries
        off = off - duals @ (queries @ off)
    return torch.cat([duals, SATURATION * off[:, None]], dim=1), torch.cat([keys, saturating[None]]).T


def _values(Z: Tensor, targets: Tensor, n_classes: int, heads: Heads, generator: Generator) -> tuple[Tensor, Tensor]:
    """W_V that turns Z into each label's code (or the target itself), W_O that reads codes as logits."""
    if n_classes == 1:
        wanted, read = targets.double()[:, None], torch.ones(1, 1, dtype=torch.float64)
    else:
        codes = class_codes(n_classes, width_needed(n_classes), generator)
        wanted, read = codes[targets], readout(codes)  # (T, width), (width, n_classes)
    width = len(read)
    W_V = torch.zeros(heads.n_heads, heads.d_model, heads.d_vo, dtype=torch.float64)
    W_O = torch.zeros(heads.n_heads, heads.d_vo, n_classes, dtype=torch.float64)
    W_V[:, :, :width] = least_squares(Z, wanted).view(heads.n_heads, heads.d_model, width)
    W_O[:, :width] = read
    return W_V, W_O


def least_squares(features: Tensor, targets: Tensor) -> Tensor:
    """The shortest solution of features @ solution = targets, or the nearest to one."""
    solution: Tensor = torch.linalg.lstsq(features, targets, driver="gelsd").solution
    return solution


def _signature(task: Task) -> Recall:
    signature = task.signature
    assert isinstance(signature, Recall)
    return signature
