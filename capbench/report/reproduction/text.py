"""Recipes and the verdicts on their claims, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from capbench.documents.text import plain, table
from capbench.studies.reproduce.data import Reproduction
from capbench.studies.reproduce.judging import judge_claims
from capbench.studies.reproduce.recipe import PaperRecipe


def recipes_text(recipes: Sequence[PaperRecipe]) -> str:
    """One row per recipe that can be reproduced."""
    rows = [(each.name, each.paper, each.title, len(each.sweeps), each.n_runs()) for each in recipes]
    return (
        f"{table(rows, ('recipe', 'paper', 'what it shows', 'sweeps', 'runs'))}\n\n"
        "next:\n  capbench reproduce NAME   # one recipe, or all of a paper; --preset smoke takes seconds"
    )


def reproduction_text(data: Reproduction) -> str:
    """The claims of a recipe: published, measured, and the verdict."""
    rows = [(v.claim.claim, v.published, v.ours, v.verdict) for v in judge_claims(data)]
    failed = [plain(f"failed: {_label(p.values)}: {p.reason}") for p in data.failures()]
    parts = [
        plain(f"{data.recipe.name}: {data.recipe.title}"),
        table(rows, ("claim", "published", "ours", "verdict")),
        "\n".join(failed),
    ]
    return "\n\n".join(part for part in parts if part)


def reproduction_json(found: Sequence[Reproduction]) -> str:
    """Data and verdicts as a JSON list with one object per recipe."""
    return json.dumps([_document(data) for data in found], indent=2, ensure_ascii=False, allow_nan=False)


def _document(data: Reproduction) -> dict[str, JsonValue]:
    judged: list[JsonValue] = [
        {
            "claim": v.claim.id,
            "group": v.claim.counted_as,
            "published": v.published,
            "ours": v.ours,
            "verdict": v.verdict.value,
        }
        for v in judge_claims(data)
    ]
    return {"verdicts": judged, "data": data.model_dump(mode="json")}


def _label(values: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
