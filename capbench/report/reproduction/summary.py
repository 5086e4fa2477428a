"""What holds, what does not and what is new: claims and figures that recipes mark for the index, by their verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.documents.text import plain
from capbench.studies.reproduce.data import Reproduction
from capbench.studies.reproduce.judging import JudgedClaim
from capbench.studies.reproduce.verdict import Verdict

Judged = tuple[Reproduction, JudgedClaim]
HOLDS = (Verdict.AGREES, Verdict.IN_DIRECTION)
ANSWERS = {
    Verdict.AGREES: "yes",
    Verdict.IN_DIRECTION: "in part",
    Verdict.DOES_NOT: "no",
    Verdict.NO_DIFFERENCE: "cannot be told",
    Verdict.NOT_SHOWN: "cannot be told",
}
"""What a verdict says about a question that capbench asks."""


def summary(judged: Sequence[Judged]) -> str:
    """A line for each marked claim under the heading that its verdict puts it, and the marked figures."""
    marked = [pair for pair in judged if pair[1].claim.headline]
    theirs = [pair for pair in marked if pair[1].claim.counted_as != "own"]
    own = [pair for pair in marked if pair[1].claim.counted_as == "own"]
    parts = [
        _section("What holds", [_line(pair) for pair in theirs if pair[1].verdict in HOLDS]),
        _section("What does not", [_line(pair) for pair in theirs if pair[1].verdict is Verdict.DOES_NOT]),
        _section(
            "What cannot be told", [_line(pair) for pair in theirs if ANSWERS[pair[1].verdict] == "cannot be told"]
        ),
        _section("What is new", [f"{_line(pair)} **{ANSWERS[pair[1].verdict]}**" for pair in own]),
        *_figures(judged),
    ]
    return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _line(pair: Judged) -> str:
    """The statement, the number measured, and where it is from."""
    data, judged = pair
    measured = plain(judged.ours).split(";")[0].replace("<", "&lt;").replace(">", "&gt;")
    return f"{judged.claim.headline}: {measured} ([{data.recipe.name}]({data.recipe.paper}.md#{data.recipe.name}))"


def _figures(judged: Sequence[Judged]) -> list[str]:
    recipes = {data.recipe.name: data.recipe for data, _ in judged}
    return [
        f"![{plain(figure.title)}]({recipe.name}-{figure.id}.svg)"
        for recipe in recipes.values()
        for figure in recipe.figures
        if figure.headline
    ]
