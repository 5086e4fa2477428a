"""What Wong 2025 ("Paying Attention to Facts", arXiv 2502.05076) says about the ranks of layers and databases."""

from __future__ import annotations

from typing import ClassVar

from capbench import Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task, hookimpl
from capbench_tasks.triples import DATABASE_RANK, LAYER_RANK, Triples


class LayerRank(Bound):
    """The rank of the tensor of logits that one attention layer can produce."""

    name: ClassVar[str] = "wong2025.layer_rank"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "the tensor L of a one-layer attention model's logits has at most this rank; argmax and softmax may inflate it"
    )
    formula: ClassVar[str] = (
        "rank(L) <= min(d,|Q|,|V|) + H d_vo min(|K|,|Q|); with one unembedding also rank(L) <= d min(|K|,|Q|)"
    )
    citation: ClassVar[str] = (
        "derived for capbench from L = E + sum_h A^h V^h of Wong 2025, Paying Attention to Facts, arXiv 2502.05076; "
        "cf. its Prop 3.5"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The smaller of the expressions that apply; it does not depend on the load."""
        if not isinstance(task, Triples):
            raise NotApplicable("it is about triples")
        heads = architecture.heads(task.signature)
        if heads is None:
            raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
        if heads.n_layers != 1:
            raise NotApplicable(f"it is about one layer, {architecture.name} has {heads.n_layers}")
        skip = min(heads.d_model, task.n_queries, task.n_values) if heads.has_skip else 0
        side = min(task.n_keys, task.n_queries)
        rank = skip + heads.n_heads * heads.d_vo * side
        if heads.has_unembedding:  # without one, heads write to the classes directly, in more than d directions
            rank = min(rank, heads.d_model * side)
        return BoundValue(rank, LAYER_RANK, "of the logits; the database that argmax reads off them may have any rank")


class DatabaseRank(Bound):
    """The rank of the tensor of a database, from its sizes alone."""

    name: ClassVar[str] = "wong2025.database_rank"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = "the tensor of a database has at most the rank sum_k |V_k|, sum_q |V_q|, and |D|"
    formula: ClassVar[str] = "rank(D) <= min( sum_k |V_k|, sum_q |V_q| ) <= min( |D|, |K||V|, |Q||V| )"
    citation: ClassVar[str] = "Wong 2025, Paying Attention to Facts, arXiv 2502.05076, Proposition 2.1"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The rank that no database of `load` triples exceeds; the architecture does not matter."""
        if not isinstance(task, Triples):
            raise NotApplicable("it is about triples")
        if load is None:
            raise NotApplicable("it depends on the load: give one with --at LOAD")
        if load > task.max_load:
            raise NotApplicable(f"a {task.structure} database of these sizes has at most {task.max_load} triples")
        value = min(load, task.n_keys * task.n_values, task.n_queries * task.n_values)
        exact = task.known_rank(load)
        known = "" if exact is None else f"; {task.structure} databases have rank {exact} exactly [derived]"
        return BoundValue(value, DATABASE_RANK, f"of any database of {load} triples{known}")


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The rank bounds of Wong 2025."""
    return [LayerRank, DatabaseRank]
