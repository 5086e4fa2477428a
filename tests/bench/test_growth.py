"""How the cost of a model-step grows with lanes, facts, heads and width; eager, where every effect shows."""

from __future__ import annotations

import pytest
from cases import Case, eager_step

from capbench.engine.devices import keep_memory
from capbench_plugins.aot import Aot
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from capbench_tasks.triples import Triples

FACTS_TOGETHER, MOST_LANES = 200_000, 128


def lanes_for(n_facts: int) -> int:
    """Small problems come in large groups, as the engine packs them: the same number of facts together."""
    return max(2, min(MOST_LANES, FACTS_TOGETHER // n_facts))


SERIES = {
    "lanes": [(n, Case(f"lanes={n}", Rgr(), Mha(), 200, n)) for n in (2, 8, 32, 128, 512)],
    "facts": [
        (n * n, Case(f"facts={n * n}", Triples(n_keys=n, n_queries=n), Aot(positions=False), n * n, lanes_for(n * n)))
        for n in (32, 100, 316, 1000)
    ],
    "heads": [(h, Case(f"heads={h}", Rgr(), Mha(n_heads=h), 200, 32)) for h in (1, 4, 16, 64)],
    "width": [(d, Case(f"d_qk={d}", Rgr(), Mha(d_qk=d), 200, 32)) for d in (4, 16, 64, 256)],
}
POINTS = [(axis, at, case) for axis, series in SERIES.items() for at, case in series]


@pytest.mark.parametrize(("axis", "at", "case"), POINTS, ids=[case.name for _, _, case in POINTS])
def test_growth(benchmark, axis: str, at: int, case: Case) -> None:
    keep_memory()
    step = eager_step(case)
    benchmark.group = f"growth: {axis}"
    benchmark.extra_info.update(axis=axis, at=at, models=case.n_models)
    benchmark.pedantic(step, rounds=12, warmup_rounds=2)
