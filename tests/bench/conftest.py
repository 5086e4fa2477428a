"""Prints every case as ratios of its loop: only these are claims, since both sides ran in the same process."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tabulate import tabulate


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    cases: dict[str, dict[str, float]] = defaultdict(dict)
    for bench in session.benchmarks if session else []:
        cases[bench.group][bench.extra_info["variant"]] = bench.stats.median / bench.extra_info["models"] * 1e3
    rows = [
        [case, f"{by['loop']:.2f}", *(f"{by[v]:.2f}" if v in by else "" for v in ("eager", "compiled")),
         *(f"{by['loop'] / by[v]:.1f}" if v in by else "" for v in ("eager", "compiled"))]
        for case, by in cases.items() if "loop" in by
    ]  # fmt: skip
    if rows:
        headers = ["ms a model-step (median)", "loop", "eager", "compiled", "loop/eager", "loop/compiled"]
        terminalreporter.write_line("")
        terminalreporter.write_line(tabulate(rows, headers=headers, disable_numparse=True))
