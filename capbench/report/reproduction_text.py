"""Recipes and what came of them, as a person reads them in a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from capbench.recipe import Recipe
from capbench.report.text import plain, table
from capbench.reproduction import Reproduction
from capbench.verdict import verdicts


def recipes_text(recipes: Sequence[Recipe]) -> str:
    """What can be reproduced."""
    rows = [(each.name, each.paper, each.title, len(each.sweeps), each.n_runs()) for each in recipes]
    return (
        f"{table(rows, ('recipe', 'paper', 'what it shows', 'sweeps', 'runs'))}\n\n"
        "next:\n  capbench reproduce NAME   # a recipe, or all of a paper; --preset smoke for a first look"
    )


def reproduction_text(data: Reproduction) -> str:
    """The claims of a recipe, both sides and the verdict."""
    rows = [(v.claim.claim, v.published, v.ours, v.outcome) for v in verdicts(data)]
    failed = [plain(f"failed: {_words(p.values)}: {p.reason}") for p in data.failures()]
    parts = [
        plain(f"{data.recipe.name}: {data.recipe.title}"),
        table(rows, ("claim", "published", "ours", "verdict")),
        "\n".join(failed),
    ]
    return "\n\n".join(part for part in parts if part)


def reproduction_json(found: Sequence[Reproduction]) -> str:
    """Data and verdicts of recipes as a list."""
    return json.dumps([_document(data) for data in found], indent=2, ensure_ascii=False, allow_nan=False)


def _document(data: Reproduction) -> dict[str, JsonValue]:
    judged: list[JsonValue] = [
        {"claim": v.claim.id, "published": v.published, "ours": v.ours, "verdict": v.outcome.value}
        for v in verdicts(data)
    ]
    return {"verdicts": judged, "data": data.model_dump(mode="json")}


def _words(values: dict[str, str]) -> str:
    return " ".join(f"{name}={word}" for name, word in values.items())
