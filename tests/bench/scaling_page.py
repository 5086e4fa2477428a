"""The measured section of docs/scaling.md."""

from __future__ import annotations

import os
import platform
import re
import statistics
from pathlib import Path

import ray
import torch
from performance_page import Timed
from scaling_estimate import MOST_SLOTS
from tabulate import tabulate

import capbench

SECTION = re.compile(r"(<!-- measured: [^\n]* -->\n).*(<!-- /measured -->)", re.DOTALL)


def write_section(timed: list[Timed], path: Path) -> None:
    """Puts what was measured in the place of what was measured before."""
    text = path.read_text(encoding="utf-8")
    assert SECTION.search(text), f"{path} has no place for what is measured"
    written = SECTION.sub(lambda match: f"{match[1]}\n{section(timed)}\n\n{match[2]}", text)
    path.write_text(written, encoding="utf-8")


def section(timed: list[Timed]) -> str:
    """All of it, in the order of the page."""
    by = {
        group: [t for t in timed if t.group == f"scaling: {group}"] for group in ("workers", "suite", "plan", "paper")
    }
    parts = [
        f"Machine: {os.cpu_count()} cores ({platform.machine()}), shared by the driver, Ray and the workers; Python "
        f"{platform.python_version()}, torch {torch.__version__}, Ray {ray.__version__}, capbench "
        f"{capbench.__version__}. Every number below comes from one run of the command. No CUDA device was measured.",
        *(workers_part(by["workers"]) if len(by["workers"]) == 3 else []),
        *(suite_part(by["suite"][0]) if by["suite"] else []),
        *(plan_part(by["plan"][0]) if by["plan"] else []),
        *(paper_part(by["paper"][0]) if by["paper"] else []),
    ]
    return "\n\n".join(parts)


def table(rows: list[list[str]], headers: list[str]) -> str:
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def workers_part(timed: list[Timed]) -> list[str]:
    """Groups a second against workers, and the ratio."""
    rows = [
        [t.info["workers"], f"{t.info['groups']}", f"{t.median:.1f}", f"{t.info['groups'] / t.median:.2f}",
         f"{1e3 * t.info['driver_cpu_seconds'] / t.info['groups']:.1f}"]
        for t in timed
    ]  # fmt: skip
    seconds = {t.info["workers"]: t.median for t in timed}
    one = statistics.fmean(seconds[name] for name in seconds if name.startswith("one"))
    return [
        "### Workers",
        f"A sweep of {timed[0].info['work']}, on workers of one thread that have started before. One worker is timed "
        "before and after two, because machines drift; the ratio takes the mean.",
        table(rows, ["workers", "groups", "seconds", "groups a second", "driver, CPU ms a group"]),
        f"**Two workers: {one / seconds['two']:.2f}× one.**",
    ]


def suite_part(t: Timed) -> list[str]:
    """What the driver costs next to the training."""
    share = 100 * t.info["driver_cpu_seconds"] / t.info["train_seconds"]
    rest = t.info["driver_cpu_seconds"] - t.info["planning_seconds"]
    return [
        "### The driver",
        f"{len(t.info['entries'])} runs of the standard suite at 256 parameters, two workers: "
        f"{', '.join(t.info['entries'])}. {t.info['trials']:,} trials in {t.info['groups']} groups; workers trained "
        f"for {t.info['train_seconds']:.0f} s, the driver took {t.info['driver_cpu_seconds']:.2f} s of CPU time in all "
        f"its threads, **{share:.1f} % of the training**: {t.info['planning_seconds']:.2f} s for the search and the "
        "documents, which a run on one machine spends too, and the rest for sending, hearing, storing and Ray itself: "
        f"**{1e3 * rest / t.info['groups']:.0f} ms a group.**",
    ]


def plan_part(t: Timed) -> list[str]:
    """How a large plan begins."""
    return [
        "### A large plan",
        f"One run of {t.info['trials']:,.0f} trials: the first group was sent **{t.info['sent_seconds']:.1f} s** after "
        f"the start of the program ({t.info['sent_cpu_seconds']:.1f} s of CPU time), which imports torch, joins the "
        "cluster, starts its workers, has every node checked and plans. The driver had taken "
        f"**{t.info['sent_megabytes']:.0f} MB** by then, and {t.info['megabytes']:.0f} MB when 1,000 trials were "
        "stored.",
    ]


def paper_part(t: Timed) -> list[str]:
    """The estimate, and what it rests on."""
    info = t.info
    rows = [
        [
            f"{n:,}",
            *(cell for hours in info["hours"].values() for cell in (_hours(hours[i]), f"{hours[0] / hours[i]:.0f}")),
        ]
        for i, n in enumerate(info["gpus"])
    ]
    headers = ["GPUs", *(h for speed in info["hours"] for h in (f"time, {speed}× a thread", "gain"))]
    return [
        "### The paper suite on many GPUs: an estimate",
        "*Measured here*, on one thread, eagerly: what a step of a lane costs at the smallest and the largest shape "
        f"of each of {info['runs']} runs (in {info['halved']} of them the largest was halved until it had at most "
        f"{MOST_SLOTS:,} facts and fitted this machine, and its cost doubled as often; "
        f"{info['left_out']} runs could not be planned and are left out); the share of its steps that a lane takes "
        "before it ends "
        f"({info['share_taken']:.2f}) and the driver's time for a group ({1e3 * info['driver_seconds']:.0f} ms), both "
        "from the runs of the standard suite above.",
        f"*Worked out*: the rounds and groups of every search ({info['groups']:,} groups), by the planner itself "
        "on made-up outcomes with the capacity in the middle of theory's bracket; the cost of shapes between the two "
        f"timed, on a line. Together {info['thread_hours']:,.0f} hours of one thread, the longest run "
        f"{info['longest_hours']:,.0f}.",
        "*Assumed*: that a GPU runs a group 10 or 100 times as fast as one thread here. **No GPU was measured**: "
        "`capbench run --task rgr --arch mha --device cuda --profile` says what a lane-step costs on yours. Workers "
        "that wait for memory, start late or fail are not counted.",
        table(rows, headers),
        "The gain ends where the rounds of the longest run, one after the other, take as long as all the rest.",
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:,.0f} min"
