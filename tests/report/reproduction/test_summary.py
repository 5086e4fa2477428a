"""The index begins with what holds, what does not and what is new, and reads in a minute."""

from __future__ import annotations

import pytest

from capbench.report.reproduction.summary import summary
from capbench.studies.reproduce.claims import ValueClaim
from capbench.studies.reproduce.data import Reproduction
from capbench.studies.reproduce.judging import JudgedClaim
from capbench.studies.reproduce.recipe import PaperRecipe, all_recipes, load_recipe
from capbench.studies.reproduce.verdict import Verdict

RECIPE = load_recipe("dana2025-model-width")


def judged(headline: str, pedigree: str, verdict: Verdict) -> tuple[Reproduction, JudgedClaim]:
    """A claim with that verdict, measured as 7."""
    fields = {"id": "a", "claim": "c", "pedigree": pedigree, "where": "w", "kind": "value", "sweep": "d10"}
    claim = ValueClaim.model_validate({**fields, "y": "at", "published": 7.0, "headline": headline})
    data = Reproduction(schema_version=1, size="standard", recipe=RECIPE, sweeps=(), environment=None)
    return data, JudgedClaim(claim, "7", "7 (6 to 8); and more", verdict)


@pytest.mark.parametrize(
    ("pedigree", "verdict", "title", "answer"),
    [
        ("paper", Verdict.AGREES, "What holds", ""),
        ("derived", Verdict.IN_DIRECTION, "What holds", ""),
        ("paper", Verdict.DOES_NOT, "What does not", ""),
        ("paper", Verdict.NO_DIFFERENCE, "What cannot be told", ""),
        ("protocol", Verdict.AGREES, "What is new", " **yes**"),
        ("protocol", Verdict.DOES_NOT, "What is new", " **no**"),
    ],
)
def test_the_verdict_decides_the_heading(pedigree: str, verdict: Verdict, title: str, answer: str) -> None:
    line = f"- Stated: 7 (6 to 8) ([dana2025-model-width](dana2025.md#dana2025-model-width)){answer}"
    assert summary([judged("Stated", pedigree, verdict)]).startswith(f"## {title}\n\n{line}")


def test_only_marked_claims_and_figures_are_in_it() -> None:
    text = summary([judged("", "paper", Verdict.AGREES)])
    assert text == f"![{RECIPE.figures[0].title}](dana2025-model-width-accuracy.svg)"


def test_the_built_in_recipes_mark_three_figures_and_what_reads_in_a_minute() -> None:
    recipes: list[PaperRecipe] = all_recipes()
    headlines = [claim.headline for recipe in recipes for claim in recipe.claims if claim.headline]
    assert sum(figure.headline for recipe in recipes for figure in recipe.figures) == 3
    assert len(set(headlines)) == len(headlines) >= 15
    assert sum(len(headline.split()) + 8 for headline in headlines) < 400  # 8: the number measured, and its link
    papers = {recipe.paper for recipe in recipes if any(claim.headline for claim in recipe.claims)}
    assert papers == {"adler2025", "dana2025", "mahdavi2024", "wong2025"}
