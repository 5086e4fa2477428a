"""The command line as a user meets it: answers, one-line errors, exit codes, and nothing else on stdout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from capbench.cli.options import typed_options
from capbench.cli.run import run_command
from capbench.cli.suite import suite_command
from capbench.cli.sweep import sweep_command
from capbench.measure.options import RunOptions
from capbench.scaffold.scaffold import Scaffold

SMOKE = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke")


def test_run_prints_the_answer_with_its_interval_theory_and_next_steps(capbench) -> None:
    done = capbench(*SMOKE, "-v")
    assert done.code == 0, done.err
    for text in ("capacity", "interval       95%", "f1 ≥ 0.99", "parameters", "per parameter", "learning rate"):
        assert text in done.out
    assert re.search(r"adler2025\.law .*\[paper\]", done.out)
    assert re.search(r"counting\.floor .*\[derived\]", done.out)
    assert "next:\n  capbench run --task rgr --arch mha --preset smoke --set arch.n_heads=8" in done.out
    assert "adam, round 1: " in done.err


def test_readings_of_the_same_trials_are_printed_side_by_side_and_kept(capbench) -> None:
    done = capbench(*SMOKE, "--readings")
    rows = done.out.partition("what is read")[2].splitlines()[2:]
    assert [row.split("  ")[0] for row in rows] == ["half", "any seed", "lax", "perfect", "most bits"]
    kept = json.loads(capbench(*SMOKE, "--json").out)["readings"]
    assert [reading["name"] for reading in kept] == ["half", "any_seed", "lax", "perfect", "most_bits"]
    assert "readings" not in capbench(*SMOKE, "-v").out


def test_json_puts_the_document_on_stdout_and_nothing_else(capbench) -> None:
    done = capbench(*SMOKE, "--json")
    document = json.loads(done.out)
    assert list(document)[:2] == ["schema_version", "run_id"]
    assert set(document) >= {
        "task", "architecture", "solver", "protocol", "n_parameters", "capacity", "bits", "bits_per_parameter",
        "bounds", "trials", "environment", "timing",
    }  # fmt: skip
    assert set(document["task"]) >= {"name", "version", "params", "plugin"}
    assert set(document["protocol"]) >= {"preset", "criterion", "seeds", "learning_rates", "steps"}
    assert set(document["capacity"]) >= {"kind", "estimate", "ci_low", "ci_high", "confidence", "status"}
    assert set(document["bounds"][0]) >= {"id", "kind", "quantity", "value", "ratio", "pedigree", "citation", "holds"}
    assert set(document["trials"][0]) >= {"key", "load", "seed", "learning_rate", "status", "steps", "metrics"}
    assert set(document["environment"]) >= {"capbench", "python", "torch", "device", "platform", "plugins"}
    assert set(document["timing"]) >= {
        "wall_seconds", "train_seconds", "compile_seconds", "lane_steps", "trials_trained", "trials_reused",
    }  # fmt: skip
    law = next(bound for bound in document["bounds"] if bound["id"] == "adler2025.law")
    assert (law["kind"], law["ratio"], law["holds"]) == ("law", None, None)
    assert law["constant"] == pytest.approx(32 / law["value"])


def test_a_second_identical_run_trains_nothing_and_says_so(capbench) -> None:
    first = json.loads(capbench(*SMOKE, "--json").out)
    again = capbench(*SMOKE)
    assert f"nothing trained: all {first['timing']['trials_trained']} trials were in the store" in again.out
    second = json.loads(capbench(*SMOKE, "--json").out)
    assert second["timing"]["trials_trained"] == 0
    for derived in ("run_id", "capacity", "bits", "bounds", "trials", "rates"):
        assert second[derived] == first[derived]


def test_the_command_in_a_result_repeats_it(capbench) -> None:
    arguments = (
        "--set",
        "task.graph=permutation",
        "--set",
        "arch.n_heads=2",
        "--at",
        "12",
        "--seeds",
        "2",
        "--lr",
        "0.2",
    )
    document = json.loads(capbench(*SMOKE, *arguments, "--json").out)
    repeated = json.loads(capbench(*document["command"].split()[1:], "--json").out)
    assert repeated["run_id"] == document["run_id"]
    assert repeated["timing"]["trials_trained"] == 0


def test_precision_is_the_users_to_choose_and_part_of_the_key(capbench) -> None:
    arguments = (*SMOKE, "--at", "20", "--seeds", "1", "--lr", "0.2", "--json")
    single, double = (json.loads(capbench(*arguments, "--dtype", dtype).out) for dtype in ("float32", "float64"))
    assert (single["protocol"]["dtype"], double["protocol"]["dtype"]) == ("float32", "float64")
    assert single["trials"][0]["key"] != double["trials"][0]["key"]
    assert "--dtype float64" in double["command"]


def test_at_asks_for_one_load_and_gives_a_success_rate(capbench) -> None:
    document = json.loads(capbench(*SMOKE, "--at", "20", "--seeds", "3", "--json").out)
    assert document["capacity"]["kind"] == "success_rate"
    assert {trial["load"] for trial in document["trials"]} == {20}
    assert {trial["seed"] for trial in document["trials"]} == {0, 1, 2}
    low, high = document["capacity"]["ci_low"], document["capacity"]["ci_high"]
    assert low < document["capacity"]["estimate"] <= high


def test_minimize_finds_the_least_width_and_its_d_k(capbench) -> None:
    arguments = ("--set", "task.graph=permutation", "--minimize", "d_qk")
    document = json.loads(capbench(*SMOKE, *arguments, "--json").out)
    capacity = document["capacity"]
    assert (capacity["kind"], capacity["parameter"]) == ("least_budget", "d_qk")
    assert capacity["d_qk_total"] == pytest.approx(4 * capacity["estimate"])
    assert {trial["load"] for trial in document["trials"]} == {24}
    budgets = {trial["budget"] for trial in document["trials"]}
    assert len(budgets) > 2
    assert "D_K*" in capbench(*SMOKE, *arguments).out


def test_minimize_keeps_to_values_that_the_architecture_allows(capbench) -> None:
    arguments = ("run", "--task", "rgr", "--arch", "headsplit", "--preset", "smoke", "--set", "task.graph=permutation")
    document = json.loads(capbench(*arguments, "--minimize", "d_qk_total", "--json").out)
    assert document["protocol"]["unit"] == 4
    assert {trial["budget"] % 4 for trial in document["trials"]} == {0}
    assert document["capacity"]["d_qk_total"] == pytest.approx(document["capacity"]["estimate"])


@pytest.mark.parametrize("ending", ["png", "svg", "html", "pdf"])
def test_plots_are_written_in_four_formats(capbench, untrained, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"curve.{ending}"
    done = capbench(*SMOKE, "--plot", str(path))
    assert (done.code, "warning" in done.err) == (0, False), done.err
    content = path.read_bytes()
    if ending == "png":
        assert content.startswith(b"\x89PNG")
    elif ending == "pdf":
        assert content.startswith(b"%PDF")
    elif ending == "svg":
        assert b"share of trials with f1" in content
        assert b"prefers-color-scheme: dark" in content
    else:
        assert b"share of trials with f1" in content
        assert b'"width": "container"' in content, "it fills the page"
        assert not re.search(rb"<script[^>]+src=", content), "the page needs no network"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--task", "rgx", "--arch", "mha"), "no task named 'rgx'; did you mean 'rgr'? (capbench list)"),
        (("run", "--task", "rgr", "--arch", "mhaa"), "no architecture named 'mhaa'; did you mean 'mha'?"),
        ((*SMOKE, "--set", "arch.heads=2"), "no field of mha named 'heads'; did you mean 'n_heads'?"),
        ((*SMOKE, "--set", "arch.n_heads=two"), "mha.n_heads: Input should be a valid integer"),
        ((*SMOKE, "--set", "arch.n_heads=0"), "mha.n_heads: Input should be greater than or equal to 1, got 0"),
        ((*SMOKE, "--set", "n_heads=2"), "--set takes task.FIELD=VALUE"),
        ((*SMOKE, "--set", "task.vectors=@nowhere.json"), "must be a readable JSON file"),
        ((*SMOKE, "--set", "task.embedding=one_hot"), "one_hot needs n_items <= d_item, got 24 > 8"),
        ((*SMOKE, "--at", "100000"), "rgr has 1 to 276 edges at these sizes, got --at 100000"),
        ((*SMOKE, "--at", "0"), "--at"),
        ((*SMOKE, "--minimize", "d_q"), "no field of mha named 'd_q'; did you mean 'd_qk'?"),
        ((*SMOKE, "--minimize", "init_scale"), "--minimize takes a field that is a whole number"),
        ((*SMOKE, "--device", "warp"), "--device takes auto, cpu, cuda, cuda:N or mps, got 'warp'"),
        ((*SMOKE, "--preset", "smok"), "no preset named 'smok'; did you mean 'smoke'?"),
        ((*SMOKE, "--solver", "adamm"), "no solver named 'adamm'; did you mean 'adam'?"),
        ((*SMOKE, "--plot", "curve.gif"), "--plot takes a file ending in .png, .svg, .html, .pdf, got 'curve.gif'"),
        ((*SMOKE, "--lr", "-1"), "--lr"),
        ((*SMOKE, "--lr", "nan"), "--lr takes numbers above 0, got nan"),
        ((*SMOKE, "--ci-width", "nan"), "--ci-width takes a share from 0.001 to 10, got nan"),
        ((*SMOKE, "--plot", "nowhere/curve.svg"), "--plot needs an existing folder"),
        (("report", "latest", "--out", "x.pdf"), "takes a file ending in .html, got 'x.pdf'"),
        (("describe", "rgx"), "no plugin named 'rgx'; did you mean 'rgr'?"),
        (("run", "--task", "rgr"), "Missing option '--arch'"),
        (("fly",), "No such command 'fly' (capbench --help)"),
        (("rnu",), "No such command 'rnu'; did you mean 'run'? (capbench --help)"),
        (("leaderboard", "biuld"), "No such command 'biuld'"),
    ],
)
def test_a_mistake_gets_one_line_exit_code_2_and_writes_nothing(
    capbench, own_store: Path, arguments: tuple[str, ...], message: str
) -> None:
    got = capbench(*arguments)
    assert (got.code, got.out) == (2, "")
    assert got.err.startswith("error: ")
    assert got.err.count("\n") == 1
    assert message in got.err
    assert not own_store.exists()


@pytest.mark.parametrize("words", [(), ("leaderboard",)], ids=["capbench", "leaderboard"])
def test_without_a_command_the_help_is_printed_as_help(words: tuple[str, ...], capbench) -> None:
    bare, asked = capbench(*words), capbench(*words, "--help")
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == asked.out
    assert bare.out.count("\n") > 10


@pytest.mark.parametrize(
    "words",
    [
        ("--plugin", "{}", "bounds", "--task", "rgr", "--arch", "late_file"),
        ("bounds", "--plugin", "{}", "--task", "rgr", "--arch", "late_file"),
        ("--plugin", "{}", "bounds", "--task", "rgr", "--arch", "late_file", "--plugin", "{}"),
        ("describe", "late_file", "--plugin", "{}"),
    ],
    ids=["before", "after", "both", "after an argument"],
)
def test_a_plugin_file_may_be_named_before_and_after_the_command(words: tuple[str, ...], capbench, tmp_path) -> None:
    path = tmp_path / "late_file.py"
    path.write_text(Scaffold.named("late-file", "architecture").files()["late_file.py"])
    done = capbench(*(word.format(path) for word in words))
    assert done.code == 0, done.err
    sys.modules.pop("late_file", None)


def test_the_commands_to_try_next_name_the_plugin_file_as_the_user_did(capbench, tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "next_file.py"
    path.write_text(Scaffold.named("next-file", "architecture").files()["next_file.py"])
    words = ("--task", "rgr", "--arch", "next_file", "--preset", "smoke", "--at", "4", "--seeds", "1", "--lr", "0.4")
    done = capbench("run", *words, "--plugin", str(path))
    assert done.code == 0, done.err
    _, _, following = done.out.partition("next:\n")
    commands = [line.strip() for line in following.splitlines() if " run " in line]
    assert commands
    assert all(line.startswith(f"capbench --plugin {path} run") for line in commands)
    sys.modules.pop("next_file", None)


def test_cuda_where_there_is_none_is_a_mistake_too(capbench, own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    got = capbench(*SMOKE, "--device", "cuda")
    assert got.code == 2
    assert "no device 'cuda'" in got.err
    assert "use --device cpu" in got.err
    assert not own_store.exists()


def test_a_store_that_cannot_be_written_is_one_line(capbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("CAPBENCH_HOME", str(blocked / "home"))
    got = capbench(*SMOKE)
    assert (got.code, got.out) == (2, "")
    assert "set CAPBENCH_HOME to a folder you can write to" in got.err
    assert got.err.count("\n") == 1


def test_a_plot_that_could_not_be_written_is_refused_before_training(capbench, tmp_path: Path, own_store: Path) -> None:
    (tmp_path / "taken.svg").mkdir()
    got = capbench(*SMOKE, "--plot", str(tmp_path / "taken.svg"))
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "--plot needs a file it can write" in got.err
    assert not own_store.exists()


def test_list_shows_plugins_and_which_pairs_fit_within_80_columns(capbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = capbench("list").out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert re.search(r"^bigrams, recall, triples +aot, published_aot, transformer, folded_mlp$", text, re.MULTILINE)
    assert re.search(r"^recurrence +deltanet ", text, re.MULTILINE), "architectures are listed by family"
    assert re.search(r"^ +gla ", text, re.MULTILINE), "which is named once"
    assert text.count("capbench 0.1.0") == 1, "who provides them is said once"
    found = json.loads(capbench("list", "--json").out)
    assert {"task": "rgr", "architecture": "mha", "fits": True, "reason": None} in found["pairs"]
    assert {entry["name"] for entry in found["bounds"]} >= {"adler2025.law", "counting.floor"}


def test_describe_explains_fields_and_bounds(capbench) -> None:
    rgr = capbench("describe", "rgr").out
    assert "f1 ≥ 0.99" in rgr
    assert re.search(r"n_items +64 +integer", rgr)
    law = capbench("describe", "adler2025.law").out
    assert "arXiv 2509.22840" in law
    assert "[paper]" in law
    mha = json.loads(capbench("describe", "mha", "--json").out)
    assert all(field["description"] for field in mha["fields"])


def test_describe_names_the_precision_of_a_solver_and_what_it_knows(capbench) -> None:
    text = capbench("describe", "construct").out
    assert "precision: float64" in text
    for reference in ("arXiv 2306.02010", "arXiv 2411.10115", "arXiv 2509.22840"):
        assert reference in text


def test_bounds_are_evaluated_without_training(capbench, own_store: Path) -> None:
    at_load = json.loads(capbench("bounds", "--task", "rgr", "--arch", "mha", "--at", "100", "--json").out)
    values = {bound["id"]: bound["value"] for bound in at_load}
    assert values["adler2025.law"] == pytest.approx(100 * 4.60517 / 16, rel=1e-5)
    text = capbench("bounds", "--task", "rgr", "--arch", "mha").out
    assert "adler2025.law" in text
    assert not own_store.exists()


def test_doctor_reports_versions_devices_and_the_store(capbench) -> None:
    done = capbench("doctor")
    assert done.code == 0
    assert "all is well" in done.out
    found = json.loads(capbench("doctor", "--json").out)
    assert (found["healthy"], found["store_status"]) == (True, "ok")
    assert "cpu" in found["devices"]


def test_doctor_tests_a_device_against_the_cpu(capbench) -> None:
    done = capbench("doctor", "--device", "cpu", "--lanes", "2", "--json")
    found = json.loads(done.out)
    assert (done.code, found["problems"]) == (0, [])
    assert found["equal_verdicts"] == found["trials"] == 4
    assert (found["largest_difference"], found["host_waits_per_step"]) == (0, 0)
    assert found["operations_per_step"] > 20
    assert found["launches_per_step"] is None, "a CPU launches no kernels"
    assert found["eager_reason"] or 0 < found["compiled_difference"] < 0.01
    assert [speed["lanes"] for speed in found["speeds"]] == [2]
    assert capbench("doctor", "--device", "cpu", "--lanes", "few").code == 2


def test_a_report_on_a_device_is_printed_and_written_for_an_issue(capbench, tmp_path: Path) -> None:
    done = capbench("doctor", "--device", "cpu", "--lanes", "2,4", "--json", str(tmp_path / "report.json"))
    found = json.loads((tmp_path / "report.json").read_text())
    assert done.out.splitlines()[-1] == "cpu is ready"
    assert f"{found['group_size']} lanes" in done.out
    assert all(f"{speed['lane_steps_per_second']:,.0f} lane-steps" in done.out for speed in found["speeds"])
    refused = capbench("doctor", "--json", str(tmp_path / "report.json" / "inside"))
    assert (refused.code, "name another file with --json" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("is_built", "n_devices", "name", "remedy"),
    [
        (False, 0, "cuda", "install a build of torch with CUDA (pytorch.org/get-started): this one has none"),
        (True, 0, "cuda:1", "check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        (True, 2, "cuda:2", "use --device cpu, or one up to cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_a_remedy(
    is_built: bool, n_devices: int, name: str, remedy: str, capbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_devices)
    done = capbench("doctor", "--device", name)
    assert done.code == 2
    assert done.err.startswith(f"error: no device '{name}': torch ")
    assert remedy in done.err


def test_text_that_libraries_write_at_the_end_never_follows_the_document() -> None:
    """As Ray's does, when its workers die with the program."""
    program = (
        "import atexit, os, sys; atexit.register(os.write, 1, b'(raylet) a worker died');"
        "sys.argv = ['capbench', 'list', '--json'];"
        "from capbench.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)
    assert "(raylet) a worker died" in done.stderr


def test_a_command_of_another_distribution_is_listed_without_being_imported(distribution, capbench) -> None:
    source = "import click\nprint('imported')\n@click.command()\ndef greet():\n    click.echo('hello')\n"
    distribution("greeter", source, "[capbench.commands]\ngreet = greeter:greet\nrun = greeter:greet\n")
    shown = capbench("--help")
    assert re.search(r"greet +from greeter", shown.out)
    assert "imported" not in shown.out
    assert "hello" in capbench("greet").out
    assert "Measure how many facts" in capbench("run", "--help").out, "a built-in cannot be replaced"


def test_a_command_that_cannot_be_loaded_is_one_line(distribution, capbench) -> None:
    distribution("broken-command", "import nowhere", "[capbench.commands]\nbroken = broken_command:go\n")
    got = capbench("broken")
    assert got.code == 1
    assert "broken-command 1.2" in got.err


@pytest.mark.parametrize(
    "statement", ["import capbench; capbench.Task, capbench.Architecture", "from capbench.cli.main import cli"]
)
def test_torch_is_not_imported_until_it_is_needed(statement: str) -> None:
    code = f"{statement}\nimport sys\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, atexit\nfrom capbench.cli.main import cli\n"
        "try: cli(['--help'])\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "doctor" in done.stdout


def test_an_interrupted_run_keeps_its_trials_and_goes_on(own_store: Path) -> None:
    """Ctrl-C ends with 130; the next run reuses what had ended and agrees with an undisturbed one."""
    command = [sys.executable, "-m", "capbench.cli", *SMOKE, "--lr", "0.2", "--steps", "1500", "--json"]
    environment = {**os.environ, "CAPBENCH_HOME": str(own_store)}
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while _stored(own_store) < 3 and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    if running.returncode == 0:
        pytest.skip("the run was over before it could be interrupted")
    assert (running.returncode, out) == (130, "")
    assert "the same command goes on from there" in err
    kept = _stored(own_store)
    resumed = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert resumed["timing"]["trials_reused"] >= kept >= 3
    fresh = {**environment, "CAPBENCH_HOME": str(own_store) + "-fresh"}
    undisturbed = json.loads(subprocess.run(command, env=fresh, capture_output=True, text=True, check=True).stdout)
    assert (resumed["capacity"], resumed["trials"]) == (undisturbed["capacity"], undisturbed["trials"])


@pytest.mark.skipif(sys.platform == "win32", reason="the compiler stand-in is a shell script")
def test_an_interrupt_while_compiling_is_an_interrupt_and_no_error_of_the_compiler(
    own_store: Path, tmp_path: Path
) -> None:
    """Ctrl-C goes to the whole process group, as from a terminal."""
    compiler = tmp_path / "slow-compiler"
    lines = ("trap 'touch interrupted; exit 1' INT", "touch started", "sleep 2", f'exec {os.environ["CXX"]} "$@"')
    compiler.write_text("\n".join(["#!/bin/sh", f"cd {tmp_path}", *lines]))
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "capbench.cli", *SMOKE, "--lr", "0.2", "--compile", "on"]
    environment = {**os.environ, "CAPBENCH_HOME": str(own_store), "CXX": str(compiler)}
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while not (tmp_path / "started").exists() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=90)
    assert (running.returncode, out) == (130, ""), err
    assert "the same command goes on from there" in err
    assert "compiler" not in err
    assert not (tmp_path / "interrupted").exists(), "the compiler is in a session of its own"


def _stored(home: Path) -> int:
    import sqlite3

    if not (home / "capbench.sqlite").exists():
        return 0
    try:
        with sqlite3.connect(home / "capbench.sqlite") as db:
            return int(db.execute("SELECT COUNT(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ((), 0.05),
        (("--no-settle",), None),
        (("--settle", "2%"), 0.02),
        (("--settle", "--no-settle"), None),
        (("--no-settle", "--settle"), 0.05),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [run_command, sweep_command, suite_command], ids=["run", "sweep", "suite"])
def test_settling_is_turned_on_and_off_and_the_last_word_counts(
    command: click.Command, words: tuple[str, ...], share: float | None
) -> None:
    pair = () if command is suite_command else ("--task", "rgr", "--arch", "mha")
    declared = RunOptions(task="rgr", arch="mha", settle=0.05)
    with command.make_context("command", [*pair, *words]) as ctx:
        assert typed_options(ctx, declared).settle == share


def test_what_others_write_to_the_descriptor_of_stdout_goes_to_stderr_even_after_the_document() -> None:
    code = (
        "import atexit, os, sys; from capbench.cli.main import main; "
        "atexit.register(os.write, 1, b'(raylet) a worker died'); sys.argv = ['capbench', 'list', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert done.stderr.endswith("(raylet) a worker died")
