"""How the total key dimension grows with the edges to recover: the law of Adler 2025, and a counting argument."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from scipy.special import lambertw

from capbench import D_K, FACTS, Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task, hookimpl
from capbench_tasks.rgr import Rgr

FEW_WRONG = 64
"""Up to this many wrong pairs the graphs around one are counted exactly."""


def _sizes_of(task: Task, architecture: Architecture) -> tuple[Rgr, int, int]:
    """The task, D_K and d, which both bounds need."""
    if not isinstance(task, Rgr):
        raise NotApplicable("it is about relational graph recognition")
    heads = architecture.heads(task.signature)
    if heads is None:
        raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
    return task, heads.d_qk_total, heads.d_model


class CapacityLaw(Bound):
    """How the total key dimension grows with the number of edges."""

    name: ClassVar[str] = "adler2025.law"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = "the total key dimension needed to recover m' edges grows as m' log m' / d"
    formula: ClassVar[str] = "D_K = Θ(m' ln m' / d)"
    citation: ClassVar[str] = (
        "Adler 2025, On the Capacity of Self-Attention, arXiv 2509.22840 (v1, v2; v3: m'/d up to logarithms)"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The D_K needed for `load` edges, or the edges that this D_K allows; both with the constant set to 1."""
        _, d_qk_total, d = _sizes_of(task, architecture)
        if load == 1:
            raise NotApplicable("m' log m' is 0 for a single edge")
        if load is not None:
            return BoundValue(load * math.log(load) / d, D_K, f"at {load} edges, constant 1")
        edges = math.exp(lambertw(d_qk_total * d).real)  # solves m' ln m' = D_K d
        return BoundValue(edges, FACTS, "the edges at which m' ln m' / d equals D_K, constant 1")


class CountingFloor(Bound):
    """The weights need at least as many states as there are graphs to tell apart."""

    name: ClassVar[str] = "counting.floor"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "the query and key weights must have at least as many states as there are graphs, counted up to the few pairs "
        "that a model at the criterion's F1 may have wrong"
    )
    formula: ClassVar[str] = (
        "D_K >= (log2 C(m(m-1), m') - log2 Σ_{e <= 2m'(1-F)/F} C(pairs, e)) / (2 b d) at F1 >= F; "
        "exact graphs: no second term; a whole permutation: log2(m!) in place of the first"
    )
    citation: ClassVar[str] = "counting argument, derived for capbench; cf. Adler 2025, arXiv 2509.22840, Theorem 7.2"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED
    # `lower_is_better` stays None: the quantity is D_K at a load, where less is better, and facts without one.

    bits_per_weight: int = Field(
        32,
        ge=1,
        le=64,
        description="b: 32 counts every float32 state of W_Q and W_K; fewer give an indication, not a proof",
    )

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The least D_K for `load` edges, or the most edges that D_K leaves possible."""
        rgr, d_qk_total, d = _sizes_of(task, architecture)
        if rgr.graph == "hubs":
            raise NotApplicable(
                "hub-heavy graphs are not equally likely, so few weights may be enough for the likely ones"
            )
        if rgr.context_size:
            raise NotApplicable(
                "it counts whole graphs, and sampled contexts score only a part; set task.context_size=0"
            )
        per_dimension = 2 * self.bits_per_weight * d
        if load is not None:
            exact, needed = _family_bits(rgr, load), _needed_bits(rgr, load)
            note = f"at {load} edges, {self.bits_per_weight} bits per weight"
            if needed < exact:
                note += f", F1 >= {rgr.criterion.threshold:g}; exact graphs: {exact / per_dimension:.3g}"
            return BoundValue(needed / per_dimension, D_K, note)
        budget = d_qk_total * per_dimension
        if _least_bits_from(rgr, rgr.max_load) <= budget:
            raise NotApplicable(
                f"not binding: {self.bits_per_weight} bits per weight tell all graphs apart; --at LOAD gives a floor"
            )
        return BoundValue(_largest_load(rgr, budget), FACTS, f"{self.bits_per_weight} bits per weight")


def _largest_load(task: Rgr, budget: float) -> int:
    """The largest load whose graphs that many bits can tell apart."""
    low, high = 0, task.max_load
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _least_bits_from(task, middle) <= budget else (low, middle)
    while low and _needed_bits(task, low) > budget:  # the bits needed fall a little wherever one more pair may be wrong
        low -= 1
    return low


def _needed_bits(task: Rgr, load: int) -> float:
    """Bits that tell the graphs with `load` edges apart, but for the pairs that may be wrong."""
    return max(0.0, _family_bits(task, load) - _spared_bits(task, _n_wrong(task, load)))


def _least_bits_from(task: Rgr, load: int) -> float:
    """A lower bound on the bits needed at this load and at every larger one: it never falls as the load grows."""

    def smooth(load: int) -> float:
        family = _family_bits(task, load)
        if task.graph == "out_regular":  # where a source becomes full, the graphs get fewer
            family = load // task.out_degree * math.log2(math.comb(task.n_items - 1, task.out_degree))
        n_wrong = _n_wrong(task, load)
        few, more = _spared_bits(task, math.floor(n_wrong)), _spared_bits(task, math.floor(n_wrong) + 1)
        return max(0.0, family - few - (n_wrong % 1) * (more - few))

    return min(smooth(load), smooth(task.max_load))


def _n_wrong(task: Rgr, load: int) -> float:
    """The most pairs that may be wrong, 2 m' (1 - F) / F: at F1 >= F, 2 tp / (2 tp + wrong) is at least F."""
    share = task.criterion.threshold
    return 2 * load * (1 - share) / share


def _spared_bits(task: Rgr, n_wrong: float) -> float:
    """log2 of the number of graphs that differ from one graph in at most so many pairs; at many, a bound on it."""
    n_pairs = task.n_items * (task.n_items - (0 if task.has_self_loops else 1))
    most = min(math.floor(n_wrong), n_pairs // 2)
    if most <= FEW_WRONG:
        return math.log2(sum(math.comb(n_pairs, e) for e in range(most + 1)))
    p = most / n_pairs
    return -n_pairs * (p * math.log2(p) + (1 - p) * math.log2(1 - p))  # the entropy bound on a sum of binomials


def _family_bits(task: Rgr, load: int) -> float:
    """log2 of the number of graphs with `load` edges, up to float64 rounding."""
    m = task.n_items

    def log2_choose(n: int, k: int) -> float:
        return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)

    if task.graph == "permutation":
        return 2 * log2_choose(m, load) + math.lgamma(load + 1) / math.log(2)
    if task.graph == "out_regular":
        full, rest = divmod(load, task.out_degree)
        sources = log2_choose(m, full) + (math.log2(m - full) if rest else 0.0)
        return sources + full * log2_choose(m - 1, task.out_degree) + log2_choose(m - 1, rest)
    return log2_choose(m * (m - 1), load)


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The law and the counting bound."""
    return [CapacityLaw, CountingFloor]
