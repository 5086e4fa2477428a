"""The coverage table has a line for every item of the documents on the four papers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capbench.studies.reproduce.recipe import recipe_names

DOCS = Path(__file__).parents[2] / "docs"
ITEMS = {  # by paper and kind, words that tell each item of the notes from the others
    ("Wong", "key result"): ["value width", "argmax and softmax", "rank(D) ≤ rank(L)", "τ = .95"],
    ("Wong", "first experiment"): ["known rank", "diagonal", "thresholded softmax"],
    ("Wong", "open question"): ["effective rank", "positions, MLP", "d_qk helps", "other tasks"],
    ("Wong", "next check"): ["10 to 100 times", "over τ", "least d_qk"],
    ("Dana", "key result"): ["H·d_h + d", "linear in H", "MLP at equal parameters", "distributions"],
    ("Dana", "first experiment"): ["accuracy against H", "accuracy against d_h", "against an MLP"],
    ("Dana", "open question"): ["joint scaling", "trained well", "other losses"],
    ("Dana", "next check"): ["non-uniform", "several layers", "inference time"],
    ("Mahdavi", "key result"): ["order H·n", "sinusoidal", "linearly with the number of heads", "real data"],
    ("Mahdavi", "first experiment"): ["rank of contexts", "shared context", "skip connection"],
    ("Mahdavi", "open question"): ["upper bound", "shared in part", "deeper"],
    ("Mahdavi", "next check"): ["Kruskal rank in trained", "layer to layer", "saturating construction"],
    ("Adler", "key result"): [
        "m' log m' / d",
        "many small heads",
        "permutation of one-hot",
        "sharp",
        "Lemma 4.1",
        "Theorem 4.2",
        "Theorem 7.2",
        "version 3",
    ],
    ("Adler", "first experiment"): ["Figure 1", "Figure 2", "Figures 3 and 5", "Figure 4"],
}
ROW = re.compile(r"^\| ([a-z ]+) \| (.+?) \| (.+) \|$", re.MULTILINE)
RECIPE = re.compile(r"`([a-z]+20\d\d-[\w-]+)`")


def rows() -> list[tuple[str, str, str, str]]:
    """The rows of the coverage table: paper, kind, item, answer."""
    text = (DOCS / "coverage.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\w+).*$", text, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(paper, *row) for paper, part in pairs for row in ROW.findall(part) if row[0] != "kind"]


@pytest.mark.parametrize(("paper", "kind"), ITEMS)
def test_every_item_of_the_notes_has_a_line_of_its_own(paper: str, kind: str) -> None:
    found = [item for *where, item, _ in rows() if where == [paper, kind]]
    lines = [[item for item in found if words in item] for words in ITEMS[paper, kind]]
    assert all(len(matching) == 1 for matching in lines), dict(zip(ITEMS[paper, kind], lines, strict=True))
    assert len({item for matching in lines for item in matching}) == len(ITEMS[paper, kind]) == len(found)


def test_no_line_is_of_another_kind() -> None:
    assert {(paper, kind) for paper, kind, *_ in rows()} == ITEMS.keys()


def test_every_line_names_a_recipe_that_exists_or_says_why_there_is_none() -> None:
    for *_, item, answer in rows():
        named = RECIPE.findall(answer)
        assert named or answer.startswith("not run: "), item
        assert set(named) <= set(recipe_names()), item


def test_every_recipe_answers_an_item() -> None:
    named = {name for *_, answer in rows() for name in RECIPE.findall(answer)}
    others = ("linsefors2026", "arora2023", "solvers", "bits-per-parameter")  # of no paper on this page
    of_the_papers = {name for name in recipe_names() if not name.startswith(others)}
    assert of_the_papers <= named
