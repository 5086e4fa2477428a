"""The papers' training protocols, by name on any run."""

from __future__ import annotations

import json

import pytest
import torch

from capbench.engine.trials import Sampling
from capbench.measure.options import MeasureOptions, RunOptions, option_of
from capbench.measure.presets import preset_named
from capbench.measure.protocols import PROTOCOLS
from capbench.measure.request import build_request
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure
from capbench_plugins.adam import Adam

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


SETTINGS = {  # batch, batches, epochs, first and last rate, repetitions [code]
    "dana2025": (256, 64, 64, 1e-2, 5e-4, 5),
    "dana2025-small": (256, 64, 64, 1e-2, 5e-4, 20),
    "dana2025-mlp": (1024, 256, 64, 1e-2, 5e-4, 5),
    "dana2025-depth": (512, 128, 64, 2.5e-3, 2.5e-3, 5),
    "dana2025-large": (1024, 64, 64, 1e-2, 5e-4, 5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_protocol_of_dana_et_al_has_the_batches_steps_and_rates_of_their_code(name: str) -> None:
    batch, batches, epochs, first, last, repetitions = SETTINGS[name]
    protocol = PROTOCOLS[name]
    assert protocol.sampling == Sampling(batch=batch, n_draws=batch * batches, scored_batches=100)
    assert (protocol.steps, protocol.learning_rates, protocol.seeds) == (batches * epochs, (first,), repetitions)
    assert last_rate(name, "aot") == pytest.approx(last)


def last_rate(name: str, arch: str) -> float:
    """The learning rate at the last step of a protocol's training."""
    protocol = PROTOCOLS[name]
    (rate,), steps = protocol.learning_rates, torch.tensor(float(protocol.steps or 0))
    adam = configure(load_registry().solver("adam"), "standard", protocol.solver_fields(arch)).plugin
    assert isinstance(adam, Adam)
    return rate * float(adam.schedule(steps, steps))


@pytest.mark.parametrize("name", ["dana2025-mlp", "dana2025-large"])
def test_the_model_with_an_mlp_ends_at_a_lower_rate(name: str) -> None:
    assert last_rate(name, "transformer") == pytest.approx(1e-4)
    assert last_rate(name, "aot") == pytest.approx(5e-4)


def test_repetitions_are_those_of_the_protocol_at_a_load_and_those_of_the_preset_in_a_search() -> None:
    def seeds(**options: object) -> int:
        chosen = RunOptions(task="bigrams", arch="aot", protocol="dana2025-small", **options)
        return build_request(chosen, load_registry()).protocol.seeds

    assert seeds(at=100) == 20
    assert seeds(at=100, preset="smoke") == preset_named("smoke").seeds
    assert seeds(at=100, seeds=2) == 2
    assert seeds() == preset_named("standard").seeds


def test_every_protocol_file_is_named_as_it_says() -> None:
    assert all(name == protocol.name for name, protocol in PROTOCOLS.items())
    assert {"capbench", "mahdavi2024", *SETTINGS} <= set(PROTOCOLS)
