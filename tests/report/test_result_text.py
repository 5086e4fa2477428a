"""One result as text: the answer stands out, text fits its width, and the task's word for a fact is used."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from capbench.documents.result import RateWindow, Result
from capbench.report import progress
from capbench.report.progress import RunLog
from capbench.report.result_text import answer_rows, next_steps, result_text
from capbench.report.terminal import styled
from tests.leaderboard.synthetic import SyntheticRecord

TABLES = ("edges guaranteed", "impossible beyond", "mean f1", "lane-steps")


@pytest.fixture
def result() -> Result:
    found = SyntheticRecord(capacity=50).result()
    others = tuple(trial.model_copy(update={"learning_rate": 0.2, "key": trial.key[::-1]}) for trial in found.trials)
    rates = RateWindow(best=0.1, tried=(0.1, 0.2), working=(0.1,), pruned=(0.2,))
    return found.model_copy(update={"trials": (*found.trials, *others[:30]), "rates": rates})


def test_the_short_form_has_the_answer_the_theory_and_no_table_of_trials(result: Result) -> None:
    text = result_text(result, "edge")
    for words in ("capacity ", "interval ", "solver adam, protocol capbench, preset standard", "-v prints every table"):
        assert words in text
    assert "impossible beyond: 300" in text
    assert "mean f1" not in text
    assert len(text.splitlines()) < 28


def test_the_full_form_has_every_table(result: Result) -> None:
    text = result_text(result, "edge", "full")
    assert all(words in text for words in TABLES)
    assert "d_model=8" in text


def test_one_line_has_the_pair_the_answer_and_its_interval(result: Result) -> None:
    text = result_text(result, "edge", "line")
    assert text.startswith("rgr × mha: ")
    assert " edges, 95%: " in text
    assert "\n" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_labelled_text_fits_the_width(width: int, result: Result) -> None:
    text = result_text(result, "edge", width=width)
    wrapped, _, _ = text.partition("\n\ntheory")
    assert max(map(len, wrapped.splitlines())) <= width
    unwrapped, _, _ = result_text(result, "edge").partition("\n\ntheory")
    assert max(map(len, unwrapped.splitlines())) > width
    assert wrapped.split() == unwrapped.split()


def test_the_number_of_trials_says_how_many_are_at_the_rate_of_the_answer(result: Result) -> None:
    rows = dict(answer_rows(result, "edge"))
    assert rows["trials"] == "74: 44 at learning rate 0.1, the others at the rates it was compared with"


def test_working_and_dropped_rates_are_explained_in_their_line(result: Result) -> None:
    rate = dict(answer_rows(result, "edge"))["learning rate"]
    assert rate == (
        "0.1 held most; working (at least half as often): 0.1; tried: 0.1, 0.2; "
        "dropped early, because others held more: 0.2"
    )


@pytest.mark.parametrize("detail", ["line", "short", "full"])
def test_a_fact_is_called_what_its_task_calls_it(detail, result: Result) -> None:
    text = result_text(result, "edge", detail)
    assert "edge" in text
    assert "fact" not in text


def test_on_a_terminal_the_answer_alone_has_a_colour(result: Result) -> None:
    text = result_text(result, "edge")
    shown = styled(text)
    assert shown.plain == text
    coloured = [shown.plain[span.start : span.end] for span in shown.spans if "green" in str(span.style)]
    assert [line.split()[0] for line in coloured] == ["capacity"]


def test_a_log_says_compiling_once_and_has_a_heartbeat(monkeypatch: pytest.MonkeyPatch, result: Result) -> None:
    log, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    listener = RunLog(Console(file=log, force_terminal=False))
    for _ in range(2):
        listener.plan("adam", 8, 0)
        listener.compiling()
    listener.trained(result.trials[0])
    listener.step(25, 1000, 7)
    assert log.getvalue().count("compiling") == 1
    assert "step" not in log.getvalue().replace("training step", "")
    now[0] += progress.HEARTBEAT_SECONDS
    listener.step(50, 1000, 7)
    listener.step(75, 1000, 7)
    assert log.getvalue().splitlines()[-1] == "step 50 of 1,000: 7 trials training, 1 ended, 1 of them held"


def test_a_suggested_command_names_each_field_once(result: Result) -> None:
    fields = result.architecture.model_copy(update={"params": {"n_heads": 8, "d_qk": 4}})
    command = f"{result.command} --set arch.n_heads=8 --set arch.d_qk=4 --set arch.n_heads_total=1"
    first = next_steps(result.model_copy(update={"architecture": fields, "command": command}))[0]
    assert first.count("arch.n_heads=") == first.count("arch.d_qk=") == 1
    assert "arch.n_heads=16" in first
    assert "arch.d_qk=2" in first
    assert "arch.n_heads_total=1" in first
