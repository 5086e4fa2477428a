"""The page that compares architectures side by side: all cells as a script, from which the address chooses."""

from __future__ import annotations

import json
from collections import defaultdict
from urllib.parse import quote

from capbench.documents.colours import architecture_colour
from capbench_leaderboard.bits_chart import bits_data
from capbench_leaderboard.families import family_of, family_order, shape_of
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import has_capacity, training_cost
from capbench_leaderboard.ranking.ranked_tables import RankedRow
from capbench_leaderboard.record_text import (
    bits_text,
    capacity_and_interval_text,
    cost_text,
    drift_text,
    plain_line,
    probability_text,
    rates_text,
    seconds_text,
    shape_text,
    status_text,
    tier_text,
)
from capbench_leaderboard.site.html_table import escape_json
from capbench_leaderboard.site.pages import SitePages

Json = dict[str, object]


def compare_address(task: str, *architectures: str) -> str:
    """The address of a comparison, relative to the site's folder."""
    chosen = ",".join(quote(name, safe="") for name in architectures)
    return f"compare.html#{quote(task, safe='')}:{chosen}"


def compare_script(pages: SitePages) -> str:
    """Every task with its architectures by family, and each architecture with its cells by tier."""
    rows = {row.entry.path: row for table in pages.board.tables for row in table.rows}
    tasks = {task: found for task in pages.tasks if (found := _task(pages, task, rows))}
    text = json.dumps(tasks, separators=(",", ":"), allow_nan=False)
    return f"window.CAPBENCH_COMPARE={escape_json(text)};\n"


def _task(pages: SitePages, task: str, rows: dict[str, RankedRow]) -> Json:
    """Empty for a task without a capacity to compare."""
    entries = [entry for entry in pages.board.drawn_entries(task) if has_capacity(entry)]
    by_name: dict[str, list[BoardEntry]] = defaultdict(list)
    for entry in entries:
        by_name[entry.result.architecture.name].append(entry)
    names = sorted(by_name, key=lambda name: (family_order(family_of(by_name[name][0].result)), name))
    architectures = {name: _architecture(pages, name, by_name[name], rows) for name in names}
    if not architectures:
        return {}
    return {
        "label": plain_line(task),
        "href": pages.tasks[task],
        "datasets": bits_data(entries, pages.links("")),
        "architectures": architectures,
    }


def _architecture(pages: SitePages, name: str, entries: list[BoardEntry], rows: dict[str, RankedRow]) -> Json:
    family = family_of(entries[0].result)
    cells = [_cell(pages, entry, rows[entry.path]) for entry in sorted(entries, key=lambda e: e.result.n_parameters)]
    return {
        "label": plain_line(name),
        "href": pages.architectures[name],
        "family": family,
        "shape": shape_of(family),
        "colour": architecture_colour(plain_line(name)),
        "cells": cells,
    }


def _cell(pages: SitePages, entry: BoardEntry, row: RankedRow) -> Json:
    """One record: numbers for the sentence, and the lines of the table."""
    result, capacity = entry.result, entry.result.capacity
    size = result.suite.tier if result.suite else result.n_parameters
    verified = pages.board.is_verified(entry)
    texts = {
        "capacity": capacity_and_interval_text(capacity),
        "bits per parameter": bits_text(entry),
        "rank": row.rank,
        "best": probability_text(row.standing) if row.standing else "–",
        "parameters": f"{result.n_parameters:,}",
        "drift": drift_text(capacity),
        "shape": shape_text(result),
        "learning rate": rates_text(result.rates),
        "steps": f"{result.protocol.steps:,}",
        "training cost": cost_text(training_cost(entry)),
        "time": seconds_text(result.timing.wall_seconds),
        "status": status_text(is_self_reported=not verified),
    }
    return {
        "size": size,
        "tier": tier_text(size),
        "href": pages.records[entry.path],
        "estimate": capacity.estimate,
        "low": capacity.ci_low,
        "high": capacity.ci_high,
        "settled": not entry.is_unsettled,
        "texts": texts,
    }
