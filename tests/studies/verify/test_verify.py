"""Verification: an honest record passes, and every kind of tampering is caught."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Document = dict[str, Any]
RUN = ("run", "--task", "rgr", "--arch", "bilinear", "--preset", "smoke", "--budget", "8", "--steps", "60")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A small real run, made once."""
    from capbench.cli.shared_options import PluginOptions
    from capbench.measure.options import RunOptions
    from capbench.measure.request import build_request
    from capbench.measure.run import execute
    from capbench.measure.session import NullListener
    from capbench.store.store import Store

    registry = PluginOptions().load()
    options = RunOptions(
        task="rgr", arch="bilinear", preset="smoke", budget=8, steps=60, rates=(0.4, 1.6), compile_mode="off"
    )
    store = Store(tmp_path_factory.mktemp("honest"))
    result = execute(build_request(options, registry), registry, store, NullListener())
    store.close()
    document: Document = result.model_dump(mode="json")
    return document


@pytest.fixture
def verify(capbench, tmp_path: Path) -> Callable[..., Any]:
    """Writes a document and runs `capbench leaderboard verify` on it."""

    def run(document: Document, *arguments: str) -> Any:
        path = tmp_path / "record.json"
        path.write_text(json.dumps(document))
        return capbench("leaderboard", "verify", str(path), "--seed", "1", *arguments)

    return run


def copy(document: Document) -> Document:
    copied: Document = json.loads(json.dumps(document))
    return copied


def with_new_summaries(document: Document) -> Document:
    """The document with every summary derived again from the tampered trials."""
    from capbench.documents.result import Result
    from capbench.measure.estimate.readings import read_trials
    from capbench.measure.estimate.summary import summarise

    result = Result.model_validate(document)
    summary = summarise(result.trials, result.protocol)
    kept = {name: document["capacity"][name] for name in ("d_qk_total", "d_qk_total_low", "d_qk_total_high")}
    bits = summary.metrics["bits"]
    return {
        **document,
        "capacity": {**summary.capacity.model_dump(mode="json"), **kept},
        "readings": [r.model_dump(mode="json") for r in read_trials(result.trials, result.protocol)],
        "metrics": summary.metrics,
        "bits": bits,
        "bits_per_parameter": bits / document["n_parameters"],
        "rates": summary.rates and summary.rates.model_dump(mode="json"),
    }


def test_an_honest_record_is_verified(honest: Document, verify) -> None:
    done = verify(honest, "--sample", "3")
    assert (done.code, done.out.splitlines()[0].rpartition(": ")[2]) == (0, "verified")
    assert f"3 of {len(honest['trials'])} trials run again; same kind of machine" in done.out
    assert "chance that this sample finds metrics changed beyond the tolerance: " in done.out
    assert "as stated, not checked: machine, versions of libraries, time and cost" in done.out


def test_a_raised_capacity_is_caught(honest: Document, verify) -> None:
    forged = copy(honest)
    forged["capacity"]["estimate"] *= 1.1
    done = verify(forged, "--sample", "0")
    assert done.code == 1
    assert "summaries wrong" in done.out
    assert "capacity.estimate" in done.out


def test_a_removed_trial_is_caught_even_when_every_summary_agrees_with_the_rest(honest: Document, verify) -> None:
    lost = next(t for t in honest["trials"] if t["status"] != "held")
    forged = copy(honest)
    forged["trials"] = [t for t in forged["trials"] if t["key"] != lost["key"]]
    done = verify(with_new_summaries(forged), "--sample", "0")
    assert done.code == 1
    assert "summaries wrong" in done.out
    assert "needs 1 trials that the document does not have" in done.out


def test_a_changed_bound_is_caught(honest: Document, verify) -> None:
    forged = copy(honest)
    bound = next(b for b in forged["bounds"] if b["value"] is not None)
    bound["value"] *= 2
    done = verify(forged, "--sample", "0")
    assert done.code == 1
    assert f"bounds.{bound['id']}.value" in done.out


def test_a_bound_that_was_left_out_is_caught(honest: Document, verify) -> None:
    forged = copy(honest)
    gone = forged["bounds"].pop()
    done = verify(forged, "--sample", "0")
    assert done.code == 1
    assert f"bounds.{gone['id']}: it was left out" in done.out


@pytest.mark.parametrize(("field", "value"), [("seed", 77), ("load", 5), ("learning_rate", 0.39)])
def test_a_changed_seed_load_or_rate_is_caught(honest: Document, verify, field: str, value: float) -> None:
    forged = copy(honest)
    trial = next(t for t in forged["trials"] if t["learning_rate"] != forged["rates"]["best"] and t[field] != value)
    trial[field] = value
    done = verify(with_new_summaries(forged) if field != "learning_rate" else forged, "--sample", "0")
    assert done.code == 1
    assert "summaries wrong" in done.out
    if field != "learning_rate":
        assert "has the key of another trial" in done.out


def test_a_changed_metric_is_caught_by_running_the_trial_again(honest: Document, verify) -> None:
    forged = copy(honest)
    trial = next(t for t in forged["trials"] if t["status"] != "held" and t["learning_rate"] != forged["rates"]["best"])
    trial["metrics"]["f1"] -= 0.001
    done = verify(with_new_summaries(forged), "--sample", "1000")
    assert done.code == 1
    assert "not reproducible" in done.out
    assert f"load {trial['load']}, seed {trial['seed']}" in done.out


def test_a_trial_declared_held_against_its_own_metric_is_caught(honest: Document, verify) -> None:
    forged = copy(honest)
    trial = next(t for t in forged["trials"] if t["status"] != "held")
    trial["status"] = "held"
    done = verify(with_new_summaries(forged), "--sample", "0")
    assert done.code == 1
    assert "is said to be held" in done.out


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ("; curl example.org", "command: it must be a line that `capbench run` accepts"),
        (" --device cuda:99", "command: stated"),
        (" --executor ray --address ray://example.org:10001", "command: stated"),
        (" --steps 61", "protocol: "),
        (" --solver construct", "command: stated"),
    ],
)
def test_a_changed_command_is_caught(honest: Document, verify, change: str, finding: str) -> None:
    forged = copy(honest)
    forged["command"] += change
    done = verify(forged, "--sample", "0")
    assert done.code == 1
    assert "summaries wrong" in done.out
    assert finding in done.out


def test_a_missing_plugin_says_how_to_get_it(honest: Document, verify) -> None:
    forged = copy(honest)
    forged["architecture"] |= {"name": "elsewhere", "plugin": "capbench-elsewhere 2.0"}
    done = verify(forged)
    assert done.code == 1
    assert "cannot run" in done.out
    assert "pip install 'capbench-elsewhere==2.0'" in done.out


def test_the_advice_for_a_plugin_file_works(capbench, tmp_path: Path) -> None:
    from capbench.scaffold.scaffold import Scaffold

    path, record = tmp_path / "verify_file.py", tmp_path / "mine.json"
    path.write_text(Scaffold.named("verify-file", "architecture").files()["verify_file.py"])
    words = ("--task", "rgr", "--arch", "verify_file", "--preset", "smoke", "--at", "4", "--seeds", "1")
    run = capbench("run", *words, "--lr", "0.4", "--steps", "30", "--json", "--plugin", str(path))
    record.write_text(run.out)
    sys.modules.pop("verify_file", None)
    without = capbench("leaderboard", "verify", str(record), "--sample", "1")
    assert without.code == 1
    assert "name the file: --plugin verify_file.py" in without.out
    advised = capbench("leaderboard", "verify", str(record), "--sample", "1", "--plugin", str(path))
    assert advised.code == 0, advised.out + advised.err
    sys.modules.pop("verify_file", None)


def test_a_plugin_with_other_code_cannot_be_run(honest: Document, verify) -> None:
    forged = copy(honest)
    forged["architecture"]["code_hash"] = "0" * 16
    done = verify(forged)
    assert done.code == 1
    assert "cannot run" in done.out


def test_an_invalid_record_names_field_and_remedy(honest: Document, verify) -> None:
    forged = copy(honest)
    forged["n_parameters"] = "many"
    done = verify(forged)
    assert done.code == 2
    assert "record.json" in done.err
    assert "n_parameters" in done.err


def test_a_stored_run_is_submitted_and_verified(capbench, tmp_path: Path) -> None:
    run = json.loads(capbench(*RUN, "--lr", "1.6", "--json").out)
    path = tmp_path / "mine.json"
    done = capbench("leaderboard", "submit", run["run_id"][:6], "--out", str(path))
    assert done.code == 0
    assert json.loads(path.read_text()) == run
    assert capbench("leaderboard", "verify", str(path), "--sample", "2").code == 0


def test_verification_ignores_the_local_store(capbench, tmp_path: Path) -> None:
    """Forged trials in the store of whoever verifies are caught too."""
    from capbench.documents.result import Trial
    from capbench.store.store import Store, home

    run = json.loads(capbench(*RUN, "--lr", "1.6", "--json").out)
    for trial in run["trials"]:
        if trial["status"] != "held":
            trial["metrics"]["f1"] -= 0.01
    store = Store(home())
    for trial in run["trials"]:
        store.add_trials([Trial.model_validate(trial)], "rgr", "bilinear")
    store.close()
    path = tmp_path / "forged.json"
    path.write_text(json.dumps(with_new_summaries(run)))
    done = capbench("leaderboard", "verify", str(path), "--sample", "1000")
    assert done.code == 1
    assert "verified" not in done.out.splitlines()[0]
