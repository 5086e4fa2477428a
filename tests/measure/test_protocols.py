"""The papers' training protocols, by name on any run."""

from __future__ import annotations

import json

import pytest

from capbench.measure.options import MeasureOptions, option_of
from capbench.measure.protocols import PROTOCOLS

SMOKE = ("--preset", "smoke")


def document(capbench, *words: str):
    done = capbench("run", *SMOKE, *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_authors_protocol_is_a_named_option_on_any_run(capbench) -> None:
    words = ("--task", "bigrams", "--arch", "aot", "--at", "100", "--seeds", "2", "--protocol", "dana2025")
    result = document(capbench, *words, "--steps", "120")
    protocol = result["protocol"]
    assert (protocol["name"], protocol["learning_rates"]) == ("dana2025", [0.01])
    assert result["solver"]["params"]["decay"] == "linear"
    assert result["solver"]["params"]["final_share"] == pytest.approx(0.05)
    assert {trial["steps"] for trial in result["trials"]} == {120}
    assert "--protocol dana2025" in result["command"]
    assert PROTOCOLS["dana2025"].steps == 4096
    relation = document(
        capbench,
        "--task",
        "rgr",
        "--arch",
        "mha",
        "--at",
        "10",
        "--seeds",
        "1",
        "--protocol",
        "mahdavi2024",
        "--steps",
        "60",
    )
    assert relation["protocol"]["name"] == "mahdavi2024"
    wrong = capbench("run", *SMOKE, "--task", "rgr", "--arch", "mha", "--protocol", "dana")
    assert "no protocol named 'dana'; did you mean 'dana2025'?" in wrong.err


def test_bits_under_a_protocol_that_scores_batches_are_those_of_all_facts(capbench) -> None:
    words = ("--task", "bigrams", "--arch", "aot", "--at", "40", "--seeds", "1")
    by_batches = document(capbench, *words, "--protocol", "dana2025", "--steps", "1500")
    assert by_batches["metrics"]["accuracy"] > 0.99
    assert 0.8 * 40 * 3.585 < by_batches["bits"] <= 40 * 3.585, "nearly log2(12) bits for each of 40 facts"
    assert "solver." not in by_batches["command"]


def test_the_help_names_every_protocol() -> None:
    text = option_of(MeasureOptions.model_fields["protocol"]).help
    assert all(name in text for name in PROTOCOLS)
