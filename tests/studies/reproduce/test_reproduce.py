"""Reproducing: recipes are listed, run, resumed and judged; their pages follow from their data and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from capbench.errors import BadDocument, UnknownName
from capbench.registry.registry import Registry, load_registry
from capbench.report.reproduction.page import DATA, default_page_folder, render_pages
from capbench.studies.reproduce.claims import (
    FitClaim,
    ForecastClaim,
    LargerClaim,
    RatioClaim,
    TableClaim,
    TrendClaim,
    ValueClaim,
)
from capbench.studies.reproduce.data import Reproduction, data_text, read_reproduction
from capbench.studies.reproduce.figure import Figure
from capbench.studies.reproduce.judging import table_rows
from capbench.studies.reproduce.recipe import (
    FOLDER,
    PaperRecipe,
    RecipeSweep,
    all_recipes,
    find_recipes,
    load_recipe,
    recipe_names,
)
from capbench.studies.reproduce.staleness import stale_reasons

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "reproductions"
OWN = """
name = "own"
paper = "mine"
title = "Two heads hold more than one"
about = "A recipe of the user's."

[[sweeps]]
id = "heads"
label = "d_qk = d_vo"
task = "triples"
arch = "aot"
preset = "smoke"
at = 20
overload = true
seeds = 3
steps = 40
rates = [0.03]
set = ["arch.d_model=4"]
grid = { "arch.n_heads" = [1, 2, 4, 6], "arch.d_qk+arch.d_vo" = [1, 2] }
[sweeps.paper]
seeds = 50

[[claims]]
id = "more"
claim = "more heads hold more"
pedigree = "derived"
where = "nowhere but here"
kind = "trend"
sweep = "heads"
x = "arch.n_heads"
y = "metrics.accuracy"
expected = "rises"

[[claims]]
id = "table"
claim = "a table | with a bar"
pedigree = "derived"
where = "nowhere but here"
kind = "table"
sweep = "heads"
y = "metrics.accuracy"
published = [0, 0, 0, 0, 0, 0, 0, 0]
within = 0.001

[[figures]]
id = "lines"
title = "Accuracy <b>against</b> heads"
kind = "lines"
sweeps = ["heads"]
x = "arch.n_heads"
y = "metrics.accuracy"
series = "arch.d_vo"
bound = "wong2025.layer_rank"
published = true

[[figures]]
id = "map"
title = "Accuracy over both"
kind = "heat_map"
sweeps = ["heads"]
x = "arch.n_heads"
series = "arch.d_vo"
y = "metrics.accuracy"

[[figures]]
id = "points"
title = "With a fitted line"
kind = "points"
sweeps = ["heads"]
x = "arch.n_heads"
y = "metrics.accuracy"
only = { "arch.d_vo" = 2 }
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_a_recipe_of_the_users_is_run_judged_drawn_and_written(capbench, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages"
    done = capbench("reproduce", str(own), "--out", str(out))
    assert done.code == 0, done.err
    assert "[8/8] own/heads arch.n_heads=" in done.err
    assert re.search(r"^a table \| with a bar .*\b(does not|agrees in direction)$", done.out, re.MULTILINE)
    assert {p.name for p in out.iterdir()} == {
        "index.md",
        "claims.md",
        "mine.md",
        "data",
        *(f"own-{f}.svg" for f in ("lines", "map", "points")),
    }
    page = (out / "mine.md").read_text()
    assert "# mine" in page
    assert "![Accuracy &lt;b&gt;against&lt;/b&gt; heads](own-lines.svg)" in page
    assert "a table \\| with a bar" in page
    assert "Under `--preset paper`: seeds = 50" in page
    assert "[mine](mine.md#own)" in (out / "claims.md").read_text()


def test_a_second_call_trains_nothing_and_writes_the_same_bytes(capbench, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages"
    capbench("reproduce", str(own), "--out", str(out))
    first = {path: path.read_bytes() for path in sorted(out.rglob("*.*"))}
    again = capbench("reproduce", str(own), "--out", str(out), "--json")
    assert again.err.count("(stored)") == 8
    assert {path: path.read_bytes() for path in sorted(out.rglob("*.*"))} == first
    (document,) = json.loads(again.out)
    assert [each["claim"] for each in document["verdicts"]] == ["more", "table"]
    assert len(document["data"]["sweeps"][0]["points"]) == 8


def test_the_page_names_who_trained(capbench, own: Path, tmp_path: Path) -> None:
    capbench("reproduce", str(own), "--out", str(tmp_path), "--device", "cpu")
    (path,) = (tmp_path / DATA).glob("*.json")
    data = json.loads(path.read_text())
    made = data["environment"]
    machine = {name: value for name, value in made.items() if name not in ("plugins", "workers")}
    assert f", on {made['device_name']} with {made['threads']} thread" in render_pages(tmp_path, Registry())["mine.md"]
    hardware = ("one chip", "one chip", "another chip")
    made["workers"] = [
        {**machine, "device_name": name, "node": f"n{i}", "plugins": [], "trials": 1} for i, name in enumerate(hardware)
    ]
    made.update(device_name="see workers", threads=1)
    path.write_text(json.dumps(data))
    assert ", on one chip and another chip with 1 thread per worker;" in render_pages(tmp_path, Registry())["mine.md"]


def test_typed_options_say_where_it_is_computed_and_not_what(capbench, own: Path, tmp_path: Path) -> None:
    done = capbench("reproduce", str(own), "--out", str(tmp_path / "p"), "--device", "cuda:99")
    assert done.code != 0
    assert "error: 8 runs failed; the first: " in done.err
    assert "cuda:99" in done.err
    assert not (tmp_path / "p").exists()
    assert "No such option" in capbench("reproduce", str(own), "--seeds", "3").err


def test_a_point_that_fails_stays_with_its_reason_and_ends_in_exit_code_1(capbench, own: Path, tmp_path: Path) -> None:
    own.write_text(OWN.replace('"arch.d_qk+arch.d_vo" = [1, 2]', '"at" = [20, 1000000]'))
    done = capbench("reproduce", str(own), "--out", str(tmp_path / "p"))
    assert done.code == 1
    assert "failed: arch.n_heads=1 at=1000000: triples has 1 to " in done.out
    assert "error: 4 runs failed" in done.err
    assert "failed: triples has 1 to " in (tmp_path / "p" / "mine.md").read_text()


def test_a_look_at_another_preset_never_replaces_results(capbench, tmp_path: Path, monkeypatch) -> None:
    published = tmp_path / "docs" / "reproductions"
    (published / "data").mkdir(parents=True)
    kept = published / "data" / "dana2025-heads.json"
    shutil.copy(ROOT / "docs" / "reproductions" / "data" / kept.name, kept)
    monkeypatch.chdir(tmp_path)
    assert default_page_folder("standard") == Path("docs/reproductions")
    assert default_page_folder("smoke") == Path("reproductions-smoke")
    done = capbench("reproduce", "dana2025-heads", "--preset", "smoke", "--out", str(published))
    assert (done.code, "has the preset standard, not smoke" in done.err) == (2, True), "before anything is trained"


def test_pages_never_replace_a_file_that_reproduce_did_not_write(capbench, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "reproductions").mkdir(parents=True)
    assert default_page_folder("standard") == Path("reproductions"), "a folder of that name without our data"
    (tmp_path / "docs" / "index.md").write_text("# My documents")
    done = capbench("reproduce", "dana2025-heads", "--preset", "smoke", "--out", "docs")
    assert (done.code, "was not written by capbench reproduce" in done.err) == (2, True)


def test_without_a_name_the_recipes_are_listed(capbench) -> None:
    done = capbench("reproduce")
    assert done.code == 0
    for recipe in all_recipes():
        assert re.search(
            rf"^{recipe.name} +{recipe.paper} .* {len(recipe.sweeps)} +{recipe.n_runs()}$", done.out, re.MULTILINE
        )


def test_a_name_is_a_recipe_or_all_of_a_paper(capbench) -> None:
    assert [recipe.name for recipe in find_recipes("dana2025-heads")] == ["dana2025-heads"]
    papers = {recipe.paper for recipe in all_recipes()}
    assert {recipe.name for paper in papers for recipe in find_recipes(paper)} == set(recipe_names())
    with pytest.raises(UnknownName, match="no recipe or paper named 'dana2025-haeds'; did you mean 'dana2025-heads'"):
        find_recipes("dana2025-haeds")
    both = capbench("reproduce", "dana2025", "--all")
    assert (both.code, "--all is every recipe; leave 'dana2025' out" in both.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("id = \"heads\"", ""), "own.toml: sweeps.0.id: is required"),
        (("seeds = 3", "seed = 3"), "sweeps.0.seed: no field named 'seed'; did you mean 'seeds'"),
        (("within = 0.001", "witin = 0.001"), "claims.1.table.witin: no field named 'witin'; did you mean 'within'"),
        (("kind = \"trend\"", "kind = \"trent\""), "claims.0: Input tag 'trent' found using 'kind' does not match"),
        (("sweep = \"heads\"", "sweep = \"haeds\""), "claim more: no sweep named 'haeds'; did you mean 'heads'"),
        (("expected = \"rises\"", "expected = \"flat\""), "`within` belongs to expected = \"flat\""),
        (("pedigree = \"derived\"", "pedigree = \"rumour\""), "claims.0.trend.pedigree: Input should be 'paper'"),
        (("id = \"map\"", "id = \"lines\""), "two figures have the id 'lines'; give each its own"),
        (("y = \"metrics.accuracy\"\nexpected", "y = \"metrics.accuracy(\"\nexpected"), "more: cannot evaluate"),
        (("seeds = 50", "seeds = \"many\""), "sweeps.0: paper.seeds: Input should be a valid integer, got 'many'"),
        (("\"arch.n_heads\" = [1, 2, 4, 6]", "\"heads\" = [1]"), "sweeps.0: at smoke: --grid takes task.FIELD"),
        (("only = { \"arch.d_vo\" = 2 }", "across = [\"1\"]"), "`across` lists the values that stand for {} in y"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_recipe_is_one_line_that_names_file_field_and_fix(own: Path, change, message: str) -> None:
    assert change[0] in OWN
    own.write_text(OWN.replace(*change, 1))
    with pytest.raises(BadDocument, match=re.escape(message)) as caught:
        find_recipes(str(own))
    assert str(caught.value).startswith(str(own))


def test_the_presets_of_a_recipe_replace_only_what_they_name(own: Path) -> None:
    (recipe,) = find_recipes(str(own))
    (sweep,) = recipe.sweeps
    assert (sweep.at_size("standard").seeds, sweep.at_size("paper").seeds) == (3, 50)
    assert sweep.at_size("paper").steps == 40
    other = load_recipe("dana2025-heads").sweeps[0]
    assert [other.at_size(size).preset for size in ("smoke", "standard", "paper")] == ["smoke", "standard", "paper"]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_where_its_numbers_come_from(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert name.startswith(recipe.paper)
    assert recipe.claims
    assert recipe.figures
    assert {claim.pedigree for claim in recipe.claims} <= {"paper", "code", "derived", "protocol"}


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_the_smoke_size_of_every_recipe_runs(capbench, name: str, tmp_path: Path) -> None:
    started = time.process_time()
    done = capbench("reproduce", name, "--preset", "smoke", "--out", str(tmp_path))
    assert done.code == 0, done.err
    recipe = load_recipe(name)
    data = read_reproduction(tmp_path / DATA / f"{name}.json")
    assert not data.failures()
    for figure in recipe.figures:
        assert "<svg" in (tmp_path / f"{name}-{figure.id}.svg").read_text()
    print(f"{name}: {time.process_time() - started:.1f} s")


def test_the_coverage_page_names_the_recipes_whose_data_are_missing() -> None:
    text = (PUBLISHED.parent / "coverage.md").read_text(encoding="utf-8")
    notices = re.findall(r"^Some recipes have no published data yet.*?\n\n", text, re.MULTILINE | re.DOTALL)
    missing = {name for name in recipe_names() if not (PUBLISHED / DATA / f"{name}.json").exists()}
    assert {name for notice in notices for name in re.findall(r"`([\w-]+)`", notice)} == missing


def test_published_data_belong_to_the_recipes_of_today_or_are_stale() -> None:
    registry = load_registry()
    for path in sorted((PUBLISHED / DATA).glob("*.json")):
        data, today = read_reproduction(path), load_recipe(path.stem)
        assert data.size == "standard"
        if data.recipe.sweeps == today.sweeps:
            assert data.recipe == today, f"{path.stem}: claims were changed; run `capbench reproduce --pages`"
        else:
            assert "its sweeps were changed since" in stale_reasons(data, registry)
        assert data_text(data) == path.read_text(encoding="utf-8")


def test_claims_that_were_changed_are_judged_again_without_training(capbench, tmp_path: Path) -> None:
    name = "dana2025-small"
    data = read_reproduction(PUBLISHED / DATA / f"{name}.json")
    old = data.model_copy(update={"recipe": data.recipe.model_copy(update={"claims": (), "figures": ()})})
    (tmp_path / DATA).mkdir()
    (tmp_path / DATA / f"{name}.json").write_text(data_text(old))
    done = capbench("reproduce", "--pages", "--out", str(tmp_path))
    assert done.code == 0, done.err
    assert read_reproduction(tmp_path / DATA / f"{name}.json") == data
    assert "accuracies of the authors' table" in (tmp_path / "dana2025.md").read_text()


@pytest.mark.parametrize("name", recipe_names())
def test_a_table_has_a_number_for_every_point_of_the_papers_grid_and_runs_some_of_them(name: str) -> None:
    recipe = load_recipe(name)
    nothing = Reproduction(size="standard", recipe=recipe, sweeps=(), environment=None)
    for claim in recipe.claims:
        if isinstance(claim, TableClaim):
            listed = {frozenset(row.fields.items()) for row in table_rows(claim, nothing)}
            (sweep,) = [each for each in recipe.sweeps if each.id == claim.sweep]
            declared = sweep.model_copy(update={"paper": {}}).published_points()
            assert listed & {frozenset(fields.items()) for fields in declared}, claim.id


BOUNDED = ("metrics.accuracy", "metrics.tau_accuracy", "metrics.f1")


@pytest.mark.parametrize("name", recipe_names())
def test_a_comparison_of_a_metric_with_a_maximum_says_where_its_ceiling_is(name: str) -> None:
    for claim in load_recipe(name).claims:
        if isinstance(claim, LargerClaim | TrendClaim) and claim.y in BOUNDED:
            assert claim.ceiling is not None, claim.id


@pytest.mark.parametrize("name", recipe_names())
def test_no_two_claims_ask_for_opposite_outcomes_of_the_same_comparison(name: str) -> None:
    """Of two such claims one agrees whatever is measured."""
    sides = [
        (repr((claim.sweep, claim.only, claim.y)), repr(claim.other()))
        for claim in load_recipe(name).claims
        if isinstance(claim, LargerClaim) and claim.counted_as != "check"
    ]
    assert not {(other, one) for one, other in sides} & set(sides)


def test_a_claim_that_is_true_by_construction_is_not_counted() -> None:
    by_construction = {
        "adler2025-curves": "one-head-flat",  # the rank of one head's scores is at most d
        "dana2025-distributions": "wide",  # the encoder's KL is 0 at d >= N - 1
        "mahdavi2024-bound": "kruskal",  # random vectors are independent
        "mahdavi2024-heads": "above-bound",  # it is 7 to 20
        "adler2025-rounding": "bits",  # fine rounding keeps what the weights hold
        "mahdavi2024-positions": "encoded",  # the queries were independent before
        "wong2025-diagonal": "equal",  # the diagonal is defined so
        "wong2025-effective-rank": "confidence",  # a probability of .95 is the largest
        "wong2025-tau": "rank-falls",  # a larger threshold states less
    }
    for name, claim in by_construction.items():
        (found,) = [each for each in load_recipe(name).claims if each.id == claim]
        assert found.counted_as == "check", name
    assert "constant" not in {claim.id for claim in load_recipe("adler2025-law").claims}


def test_vectors_of_words_are_what_the_licence_gives() -> None:
    """Singular vectors of log(1 + counts within five words) of its 64 most frequent words, of length 1."""
    words = re.findall(r"[a-z]+", (ROOT / "LICENSE").read_text(encoding="utf-8").lower())
    frequent = sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))[:64]
    index = {word: i for i, (word, _) in enumerate(frequent)}
    counts = np.zeros((64, 64))
    for i, word in enumerate(words):
        for other in words[max(0, i - 5) : i]:
            if word in index and other in index:
                counts[index[word], index[other]] += 1
                counts[index[other], index[word]] += 1
    left, values, _ = np.linalg.svd(np.log1p(counts))
    vectors = left[:, :16] * np.sqrt(values[:16])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = np.array(json.loads((FOLDER / "licence-words.json").read_text(encoding="utf-8")))
    np.testing.assert_allclose(stored @ stored.T, vectors @ vectors.T, atol=0.01)
    off_diagonal = (stored @ stored.T)[~np.eye(64, dtype=bool)]
    assert (off_diagonal.mean(), off_diagonal.max()) == (pytest.approx(0.28, abs=0.01), pytest.approx(0.96, abs=0.01))


def test_a_recipe_reads_vectors_from_the_file_beside_it(capbench, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = capbench("reproduce", "adler2025-given", "--preset", "smoke", "--out", "out")
    assert done.code == 0, done.err
    assert len(read_reproduction(tmp_path / "out" / DATA / "adler2025-given.json").points("words")) == 2


def test_a_recipe_is_the_same_after_it_was_written_into_data(own: Path) -> None:
    for recipe in [*all_recipes(), *find_recipes(str(own))]:
        assert PaperRecipe.model_validate_json(recipe.model_dump_json(exclude_unset=True), strict=True) == recipe


def test_the_recipe_of_the_documents_runs_and_every_field_is_explained(capbench, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r'^```toml title="mine.toml"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.toml").write_text(toml)
    done = capbench("reproduce", str(tmp_path / "mine.toml"), "--preset", "smoke", "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    models = [RecipeSweep, TableClaim, ValueClaim, TrendClaim, LargerClaim, FitClaim, RatioClaim, ForecastClaim, Figure]
    fields = {name for model in models for name in model.model_fields} - set(PaperRecipe.model_fields)
    words = set(re.findall(r"\w+", text))
    assert fields <= words, fields - words
