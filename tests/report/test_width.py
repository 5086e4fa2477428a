"""Texts for a terminal of 80 columns: tables are wrapped between words, and nothing is lost."""

from __future__ import annotations

import pytest

from capbench.documents.result import Result
from capbench.documents.text import pluralize, table
from capbench.report.result_text import result_text
from capbench.report.study_text import suite_text
from capbench.report.terminal import styled
from capbench_leaderboard.compare import ranked, table_text
from tests.leaderboard.synthetic import SyntheticRecord

WIDTH = 80
HEADERS = ("rank", "architecture", "bits per parameter", "interval", "what it says")
ROW = ("1", "mha", "0.989", "141 to open", "empirical, on language models; others find 3.6 on random strings")


def widest(text: str) -> int:
    return max(len(line) for line in text.splitlines())


def result(architecture: str, capacity: float) -> Result:
    return SyntheticRecord(architecture=architecture, capacity=capacity, settled=True).result()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_fits_its_width_breaks_no_word_and_loses_none(width: int) -> None:
    text = table([ROW, ("2", "gqa", "0.8", "87 to 175", "a law")], HEADERS, width)
    assert widest(text) <= width
    for word in " ".join((*HEADERS, *ROW)).split():
        assert word in text.split()


def test_a_table_that_fits_is_the_same_with_and_without_a_width() -> None:
    assert table([("1", "mha")], ("rank", "name"), WIDTH) == table([("1", "mha")], ("rank", "name"))


def test_where_the_words_alone_are_too_wide_a_row_is_a_block_of_lines() -> None:
    text = table([("a" * 20, "b" * 20, "–"), ("c" * 20, "d" * 20, "1")], ("one", "two", "three"), 30)
    assert text.split("\n\n") == [
        f"one    {'a' * 20}\ntwo    {'b' * 20}",
        f"one    {'c' * 20}\ntwo    {'d' * 20}\nthree  1",
    ]


@pytest.mark.parametrize("words", [("suite", "--list"), ("doctor",), ("plugins",), ("list",)], ids=" ".join)
def test_what_only_people_read_fits_80_columns(words: tuple[str, ...], capbench, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPBENCH_HOME", "home")
    done = capbench(*words)
    assert done.code == 0, done.err
    assert widest(done.out) <= WIDTH


@pytest.mark.parametrize("detail", ["short", "full"])
def test_a_result_fits_80_columns_but_for_commands(detail) -> None:
    text = result_text(result("differential_attention", 10_000), "association", detail, WIDTH)
    answer, _, following = text.partition("next:\n")
    assert widest(answer) <= WIDTH
    assert not [line for line in following.splitlines() if len(line) > WIDTH and "#" in line]


def test_a_comparison_and_a_suite_fit_80_columns() -> None:
    results = [result(name, 40 * (1 + i)) for i, name in enumerate(("differential_attention", "mha", "mlp"))]
    text = table_text(ranked(results), "On rgr mha holds more. " * 12, WIDTH)
    assert widest(text) <= WIDTH
    assert "differential_attention" in text
    assert widest(suite_text(results, [], [128, 256, 512, 1024, 2048], WIDTH)) <= WIDTH


def test_a_comment_above_a_command_is_dim() -> None:
    text = styled("rgr × mha\nnext:\n  # the least D_K that holds them\n  capbench run")
    assert [span.style for span in text.spans if text.plain[span.start : span.end].startswith("  #")] == ["dim"]


def test_one_is_singular() -> None:
    assert [pluralize(n, "trial") for n in (0, 1, 2, 1000)] == ["0 trials", "1 trial", "2 trials", "1,000 trials"]


def test_a_quiet_run_prints_one_line(capbench, untrained) -> None:
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--params", "1k", "--lr", "0.4", "-q")
    for done in (capbench(*words), capbench(*words)):
        assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
        assert done.out.startswith("rgr × mha: ")


def test_a_run_of_one_trial_says_one_trial(capbench, untrained) -> None:
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--at", "4", "--seeds", "1", "--lr", "0.4")
    first, again = capbench(*words), capbench(*words)
    assert "1 trial trained, 0 from the store" in first.out
    assert "nothing trained: the only trial was in the store" in again.out
    assert "1 trials" not in first.out + first.err + again.out + again.err
