"""The page of measurements: machine, versions, ratios, growth, and the time to a whole capacity."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import altair as alt
import torch
import vl_convert
from tabulate import tabulate

import capbench
from capbench.report.result_plot import with_dark_style

WAYS = ("compiled", "shaken")
KINDS = ("user runs", "steps", "growth", "end to end", "published row", "verdicts")


@dataclass(frozen=True)
class Timed:
    """One benchmark: its group, the median seconds of a call, and what it says of itself."""

    group: str
    median: float
    info: dict[str, object] = field(default_factory=dict)

    @property
    def ms_per_model(self) -> float:
        return 1e3 * self.median / self.info["models"]


def step_table(steps: list[Timed], style: str) -> str:
    """Milliseconds per model-step and ratios; the loop counts as the mean of its medians before and after."""
    cases: dict[str, dict[str, Timed]] = defaultdict(dict)
    for timed in steps:
        cases[timed.info["case"]][timed.info["variant"]] = timed
    rows = []
    for case, by in cases.items():
        loops = [by[v].ms_per_model for v in ("loop", "loop, after") if v in by]
        if not loops or not {"eager", "compiled"} <= by.keys():
            continue
        loop = statistics.fmean(loops)
        eager, compiled = by["eager"].ms_per_model, by["compiled"].ms_per_model
        on_all = f"{loop / by['all cores'].ms_per_model:.1f}" if "all cores" in by else ""
        rows.append(
            [case, " / ".join(f"{ms:.2f}" for ms in loops), f"{eager:.3f}", f"{compiled:.3f}", f"{loop / eager:.1f}",
             f"{loop / compiled:.1f}", on_all, f"{by['compiled'].info['compile_seconds']:.0f}"]
        )  # fmt: skip
    headers = [
        "ms per model-step",
        "loop, before / after",
        "eager",
        "compiled, one core",
        "loop/eager",
        "loop/compiled, one core",
        "loop/compiled, all cores",
        "compile s",
    ]
    return tabulate(rows, headers=headers, tablefmt=style, disable_numparse=True)


def machine_table(steps: list[Timed]) -> str:
    """Compiled steps against what one core can do."""
    rows = []
    for t in steps:
        if t.info["variant"] != "compiled":
            continue
        per_second = 1e3 / t.ms_per_model
        flops, n_bytes = t.info["flops"] * per_second, t.info["n_bytes"] * per_second
        rows.append(
            [t.info["case"], f"{t.info['flops'] / 1e6:.2f}", f"{t.info['n_bytes'] / 1e6:.2f}", f"{flops / 1e9:.1f}",
             f"{flops / t.info['peak_flops']:.0%}", f"{n_bytes / 1e9:.1f}", f"{n_bytes / t.info['peak_bytes']:.0%}"]
        )  # fmt: skip
    headers = ["one core", "Mflop per step", "MB per step", "Gflop/s", "of the peak", "GB/s", "of a stream"]
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def user_table(timed: list[Timed], style: str) -> str:
    """Whole commands against plain loops over the same trials."""
    pairs: dict[str, dict[str, Timed]] = defaultdict(dict)
    for t in timed:
        pairs[t.info["pair"]][t.info["variant"]] = t
    rows = []
    for pair, by in pairs.items():
        for variant in ("cold", "warm"):
            if not {variant, "one loop", "two loops"} <= by.keys():
                continue
            run = by[variant]
            one, two = (
                run.info["lane_steps"] * by[loops].info["seconds_per_step"] for loops in ("one loop", "two loops")
            )
            rows.append(
                [pair, variant, f"{run.median:.1f}", run.info["trials"], f"{run.info['lane_steps']:,}",
                 f"{run.info['compiled_share']:.0%}", f"{one:,.0f}", f"{one / run.median:.1f}",
                 f"{two / run.median:.1f}"]
            )  # fmt: skip
    headers = [
        "run", "", "seconds", "trials", "lane-steps", "compiled", "one loop, seconds", "ratio to one loop",
        "ratio to two loops",
    ]  # fmt: skip
    return tabulate(rows, headers=headers, tablefmt=style, disable_numparse=True)


def growth_table(timed: list[Timed]) -> str:
    """Cost along each axis."""
    rows = []
    for t in timed:
        per_fact = f"{1e6 * t.ms_per_model / t.info['at']:.0f}" if t.info["axis"] == "facts" else ""
        rows.append([t.info["axis"], f"{t.info['at']:,}", f"{t.ms_per_model:.3f}", per_fact])
    return tabulate(
        rows, headers=["axis", "value", "ms per model-step", "ns per fact"], tablefmt="github", disable_numparse=True
    )


def end_to_end_lines(timed: list[Timed]) -> list[str]:
    """The search against grid and loop, the latter multiplied up from its sample."""
    by = {t.info.get("variant"): t for t in timed}
    if not {"search", "grid and loop"} <= by.keys():
        return ["Not measured in this run."]
    search, grid = by["search"], by["grid and loop"]
    whole = grid.median / grid.info["sampled"] * grid.info["trials"]
    rows = [
        ["search", f"{search.info['trials']:,}", f"{search.median:.0f} s", _interval(search)],
        ["grid and loop", f"{grid.info['trials']:,}", f"{whole:,.0f} s (estimated)", _interval(grid)],
    ]
    table = tabulate(
        rows, headers=["way", "trials", "time", "capacity, 95 %"], tablefmt="github", disable_numparse=True
    )
    sampled, trials = grid.info["sampled"], grid.info["trials"]
    note = (
        f"The loop really trained {sampled} trials of the grid, drawn at random, in {grid.median:.1f} s; its time is "
        f"that times {trials} / {sampled}. Its interval comes from the grid's loads within a factor of "
        f"{grid.info['near']:g} of the search's estimate, at the best rate, trained by the engine. The search's time "
        f"includes {search.info['compile_seconds']:.0f} s of compiling. **Ratio: {whole / search.median:.0f}.**"
    )
    return [table, "", note]


def row_line(timed: list[Timed]) -> str:
    """The row of a published table against the loop, the latter multiplied up from its steps."""
    by_variant = {t.info.get("variant"): t for t in timed}
    row, alone = by_variant.get("row"), by_variant.get("row, one process")
    loops = [t for t in timed if t.info.get("variant") == "loop"]
    if row is None or not loops:
        return "Not measured in this run."
    by_heads: dict[object, list[float]] = defaultdict(list)
    for t in loops:
        by_heads[t.info["heads"]].append(t.median / t.info["steps"])
    step = statistics.fmean(statistics.fmean(times) for times in by_heads.values())
    whole = step * row.info["models"] * row.info["steps"]
    sampled = sum(t.info["steps"] for t in loops)
    line = (
        f"{row.info['models']} models of {row.info['steps']:,} steps took {row.median:.0f} s, all in, by "
        f"{row.info['processes']} processes, as is the default on as many cores. The loop takes "
        f"{1e3 * step:.1f} ms per step on average over the head counts ({sampled} steps timed, half of them before and "
        f"half after), so {whole:,.0f} s for the row. **Ratio: {whole / row.median:.0f}.**"
    )
    if alone is None:
        return line
    return (
        f"{line} In one process, with `OMP_NUM_THREADS={alone.info['threads']}`, it took {alone.median:.0f} s: "
        f"{whole / alone.median:.0f}."
    )


def verdict_table(timed: list[Timed]) -> str:
    """Shares of trials that come to the verdict of eager training."""
    rows = []
    for where, said in (("curve", "a whole curve"), ("search", "a search")):
        counted = [(t.info["pair"], Counter(t.info["asked"][where])) for t in timed]
        counted.append(("all", sum((counts for _, counts in counted), Counter())))
        rows += [
            [said, setup, f"{n['trials']}", f"{n['held']}", *(f"{100 * n[way] / n['trials']:.1f} %" for way in WAYS)]
            for setup, n in counted
        ]
    headers = [
        "trials of",
        "pair",
        "trials",
        "of them held",
        "compiled: same verdict",
        "last digit changed, eager: same",
    ]
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def _interval(timed: Timed) -> str:
    return f"{timed.info['estimate']:.0f} ({timed.info['low']:.0f} to {timed.info['high']:.0f})"


def page(timed: list[Timed]) -> str:
    """The whole page: a section for everything that this run measured."""
    groups = {kind: [t for t in timed if t.group.startswith(kind)] for kind in KINDS}
    head = [
        "# Performance",
        "",
        "Written by `make bench`, or with its first section only by `make bench-user`; every number on this page comes "
        "from one run.",
        "",
        f"Machine: {os.cpu_count()} cores ({platform.machine()}); Python {platform.python_version()}, torch "
        f"{torch.__version__}, capbench {capbench.__version__}. No CUDA device was measured; on a machine that has "
        "one, `capbench run --task rgr --arch mha --device cuda --profile` shows what a lane-step costs there, and "
        "`pytest -m cuda` runs the tests for it.",
        "",
    ]
    sections = [line for kind in KINDS if groups[kind] for line in (*_section(kind, groups[kind]), "")]
    return "\n".join([*head, *sections])


def _section(kind: str, timed: list[Timed]) -> list[str]:
    """The heading, the explanation and the numbers of one kind of measurement."""
    if kind == "user runs":
        return [
            "## What a user gets",
            "",
            "Whole commands, `capbench run` at its defaults (triples with 20 keys, queries and values, d = 8 and two "
            "heads of width 4), from an empty store: cold with an empty cache of compiled steps, warm with the cache "
            "of the cold run. Against plain loops over the very same trials: one model at a time on one thread, "
            "torch's own Adam, only the facts asked for, timed on trials drawn in proportion to their steps; one loop, "
            "and two side by side.",
            "",
            user_table(timed, "github"),
        ]
    if kind == "steps":
        return [
            "## A training step",
            "",
            "The loop trains one model at a time, as a careful researcher writes it: plain modules, full batches, "
            "torch's own Adam, one thread. The engine trains all models of a case together. Times are medians; the "
            "loop is timed before and after the engine because machines drift, and the ratio takes the mean of both. "
            "Compiling is not in the step. On all cores: one thread per core, each with lanes of its own, as the "
            "workers of a run.",
            "",
            step_table(timed, "github"),
            "",
            *_machine_lines(timed),
        ]
    if kind == "growth":
        return [
            "## How the cost grows",
            "",
            "Eager steps: rgr × mha with its default sizes along lanes, heads and width; triples × aot with full "
            "tables along facts, in groups of 200,000 facts together (128 models at most, 2 at least).",
            "",
            growth_table(timed),
            "",
            "![cost of a model-step along each axis](performance.svg)",
        ]
    if kind == "end to end":
        return [
            "## Time to a capacity within ± 5 %",
            "",
            "triples × aot, standard preset, from an empty store.",
            "",
            *end_to_end_lines(timed),
        ]
    if kind == "published row":
        return [
            "## A row of a published table",
            "",
            "Dana et al. 2025, N = 50, d = d_h = 10: seven head counts with five seeds each under the authors' "
            "protocol, `capbench reproduce dana2025-heads` from an empty store; against the same procedure one model "
            "at a time, with one torch attention module per head.",
            "",
            row_line(timed),
        ]
    return [
        "## Verdicts, compiled and eager",
        "",
        "A compiled step rounds otherwise than an eager one, and training near the threshold is chaotic: a difference "
        "in the last digit can decide whether a model holds its facts. Here trials of a whole curve, evenly from an "
        "eighth of the threshold to twice it, and all trials of a search, which are mostly near it, are trained three "
        "times: eagerly, compiled, and eagerly from initial weights that differ by one part in ten million, to show "
        "what rounding alone does.",
        "",
        verdict_table(timed),
    ]


def _machine_lines(steps: list[Timed]) -> list[str]:
    """How far compiled steps are from the machine."""
    info = next((t.info for t in steps if t.info["variant"] == "compiled"), None)
    if info is None:
        return []
    return [
        "How far that is from the machine: operations are counted on the recorded step (one per element, two per "
        "multiplication and addition of a matrix product; exponentials count as one), bytes as every array that a "
        "kernel reads or writes. One core reaches, measured in the same run, "
        f"{info['peak_flops'] / 1e9:.1f} Gflop/s with vectors of eight and {info['peak_bytes'] / 1e9:.1f} GB/s from "
        "main memory; arrays that stay in the cache can move faster than that.",
        "",
        machine_table(steps),
    ]


def write_charts(timed: list[Timed], path: Path) -> None:
    """The growth of the cost, one panel per axis."""
    rows = [
        {"axis": t.info["axis"], "at": t.info["at"], "ms": t.ms_per_model}
        for t in timed
        if t.group.startswith("growth")
    ]
    panels = [
        alt.Chart(alt.Data(values=[row for row in rows if row["axis"] == axis]), width=190, height=160)
        .mark_line(point=True)
        .encode(
            alt.X("at:Q", scale=alt.Scale(type="log"), axis=alt.Axis(title=axis, format="~s", tickCount=4)),
            alt.Y("ms:Q", scale=alt.Scale(type="log"), title="ms per model-step"),
        )
        for axis in dict.fromkeys(row["axis"] for row in rows)
    ]
    if panels:
        svg = vl_convert.vegalite_to_svg(alt.hconcat(*panels).to_json())
        path.write_text(with_dark_style(svg), encoding="utf-8")
