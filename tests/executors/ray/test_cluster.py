"""A Ray cluster of two nodes trains what this process would train, to the bit, whatever dies on the way."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from capbench.documents.strict_json import read_result
from capbench.engine.trials import Setup, Training, TrialSpec, seeded
from capbench.executors.ray.connection import NOT_STARTED, connect
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.registry.registry import load_registry
from capbench.store.store import Store
from capbench.studies.sweep import parse_grid, run_sweep
from tests.engine.test_every_pair import compiles
from tests.executors.nodes import PATIENCE_SECONDS, RayNodes, wait_for

ROOT = Path(__file__).parents[3]
GREMLIN = Path(__file__).parents[1] / "gremlin.py"
PAIR = ("--task", "rgr", "--arch", "mha", "--preset", "smoke", "--compile", "off")
AT = ("--at", "12", "--lr", "0.4", "--steps", "50")
WILD = ("--task", "rgr", "--arch", "gremlin", "--preset", "smoke", "--compile", "off", "--lr", "0.1", "--steps", "50")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # Ray's own: it never closes the logs of the processes that it starts, nor waits for those it kills.
    pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper name='[^']*/ray/session:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess \\d+ is still running:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def no_gremlins() -> Iterator[None]:
    sys.modules.pop("gremlin", None)
    yield
    sys.modules.pop("gremlin", None)


@pytest.fixture
def ray_words(nodes: RayNodes) -> tuple[str, ...]:
    return "--executor", "ray", "--address", nodes.address


@pytest.fixture
def expected(capbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict]:
    """What this process makes of the same words, in a store of its own."""

    def run(*words: str) -> dict:
        with monkeypatch.context() as patch:
            patch.setenv("CAPBENCH_HOME", str(tmp_path / "expected"))
            done = capbench(*words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    return run


def wild(mood: str, folder: Path, salt: int = 0) -> tuple[str, ...]:
    values = {"tame": os.getpid(), "mood": mood, "folder": str(folder), "salt": salt}
    return tuple(word for name, value in values.items() for word in ("--set", f"arch.{name}={json.dumps(value)}"))


SAME = ("run_id", "command", "protocol", "capacity", "bits", "rates", "constructed", "bounds", "trials")


def test_a_capacity_has_the_same_trials_keys_and_numbers_bit_for_bit(capbench, expected, ray_words) -> None:
    done = capbench("run", *PAIR, "--lr", "0.4", "--budget", "10", *ray_words, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    here = expected("run", *PAIR, "--lr", "0.4", "--budget", "10")
    assert {part: found[part] for part in SAME} == {part: here[part] for part in SAME}
    assert found["timing"]["lane_steps"] == here["timing"]["lane_steps"]
    workers = found["environment"]["workers"]
    n_trials = len(found["trials"]) + len(found["constructed"]["trials"])
    assert sum(worker["trials"] for worker in workers) == n_trials
    assert {plugin["code_hash"] for worker in workers for plugin in worker["plugins"]} >= {
        found[part]["code_hash"] for part in ("task", "architecture", "solver")
    }
    assert {(worker["torch"], worker["threads"]) for worker in workers} == {(torch.__version__, 1)}
    again = json.loads(capbench("run", *PAIR, "--lr", "0.4", "--budget", "10", "--json").out)
    assert again["timing"]["trials_trained"] == 0, "the executor is no part of a trial's key"
    assert read_result(write(found)).environment.workers


@compiles
def test_a_program_is_compiled_once_on_a_node_and_kept(capbench, nodes: RayNodes, ray_words) -> None:
    words = ("run", *PAIR[:-1], "on", *AT, "--seeds", "2")
    done = capbench(*words, *ray_words, "--json")
    assert done.code == 0, done.err
    timing = json.loads(done.out)["timing"]
    assert (timing["compiled_lane_steps"], timing["eager_reasons"]) == (timing["lane_steps"], [])
    assert len(list((nodes.site / "home" / "compiled").glob("*.so"))) == 1


def write(document: dict) -> Path:
    path = Path(os.environ["CAPBENCH_HOME"]) / "document.json"
    path.write_text(json.dumps(document))
    return path


def test_from_outside_the_cluster_the_numbers_are_the_same(nodes: RayNodes, expected, tmp_path: Path) -> None:
    words = ("run", *PAIR, *AT, "--seeds", "3", "--executor", "ray", "--address", nodes.client_address, "--json")
    for _ in range(5):  # Ray starts a process on the head first, and a busy machine may need longer than it is given
        done = subprocess.run(
            [sys.executable, "-m", "capbench.cli", *words], capture_output=True, text=True, check=False
        )
        if not any(words in done.stderr for words in ("is not a Ray cluster", NOT_STARTED)):
            break
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == expected("run", *PAIR, *AT, "--seeds", "3")["trials"]


class Listener:
    """Notes when the runs of a series begin and end."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.run = self

    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...

    def started(self, job, n_finished: int, n_jobs: int) -> None:
        self.heard.append("started")

    def finished(self, finished, seconds_left: float | None) -> None:
        self.heard.append("finished")


def test_the_runs_of_a_sweep_overlap_and_come_out_in_their_places(nodes: RayNodes, tmp_path: Path) -> None:
    options = {"preset": "smoke", "at": 12, "rates": (0.4,), "steps": 50, "seeds": 2, "compile_mode": "off"}
    grid, registry, found = parse_grid(["arch.n_heads=1,2,3,4,5"]), load_registry(), {}
    for where in ({"executor": "ray", "address": nodes.address}, {}):
        heard, store = Listener(), Store(tmp_path / f"{len(where)}")
        points = run_sweep(RunOptions(task="rgr", arch="mha", **options, **where), grid, registry, store, heard)
        found[bool(where)] = [(point.values, point.result.trials) for point in points if point.result]
        trained = {worker.node for point in points for worker in point.result.environment.workers}
        assert len(trained) == (2 if where else 0), "both nodes have trained"
        assert heard.heard[:3] == (["started"] * 3 if where else ["started", "finished", "started"])
        assert len(heard.heard) == 10
        store.close()
    assert found[True] == found[False]
    assert len(found[True]) == 5


def test_a_suite_writes_the_records_that_it_writes_here(capbench, ray_words, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = tmp_path / "tiny.toml"
    suite.write_text(
        'name = "tiny"\nversion = 1\npreset = "smoke"\ntasks = ["triples"]\narchitectures = ["mha", "mlp"]\n'
        'tiers = [400]\nseeds = 2\nbudget = 4\nci_width = 0.5\n[[rules]]\narchitectures = ["mha"]\n'
        'set = ["arch.d_model=8"]\n'
    )
    for home, words in (("here", ()), ("there", ray_words)):
        monkeypatch.setenv("CAPBENCH_HOME", str(tmp_path / home))
        done = capbench("suite", str(suite), "--out", home, *words)
        assert done.code == 0, done.err
        assert "[2/2] " in done.err
    here, there = (
        {p.relative_to(root): read_result(p) for p in Path(root).rglob("m*-*.json")} for root in ("here", "there")
    )
    assert here.keys() == there.keys()
    assert len(here) == 2
    for path, record in here.items():
        assert there[path].trials == record.trials
        assert there[path].environment.workers
        assert not record.environment.workers


def test_a_killed_worker_costs_time_and_nothing_else(capbench, expected, ray_words, tmp_path: Path) -> None:
    words = ("--plugin", str(GREMLIN), "run", *WILD, "--at", "8", "--seeds", "4", *wild("kill once", tmp_path))
    done = capbench(*words, *ray_words, "--json")
    assert done.code == 0, done.err
    assert (tmp_path / "killed").exists()
    assert json.loads(done.out)["trials"] == expected(*words)["trials"]


def poisoned(mood: str, folder: Path, n_seeds: int) -> tuple[tuple[str, ...], int]:
    """Words under which one seed alone is lethal, and that seed; what the memory probe draws must not be."""
    request = build_request(RunOptions(task="rgr", arch="gremlin", preset="smoke"), load_registry(files=[GREMLIN]))
    values = {"tame": os.getpid(), "mood": mood, "folder": str(folder)}
    for salt in range(1000):
        architecture = request.architecture.replaced(**values, salt=salt)
        setup = Setup(request.task, architecture, request.solver, Training(request.task.plugin.criterion, 50))
        lethal = [seed for seed in range(n_seeds) if draw(setup, 8, seed) > sys.modules["gremlin"].LETHAL]
        if len(lethal) == 1 and draw(setup, 1, 0) < sys.modules["gremlin"].LETHAL:
            sys.modules.pop("gremlin")
            return wild(mood, folder, salt), lethal[0]
    raise AssertionError("a seed in seven is lethal")


def draw(setup: Setup, load: int, seed: int) -> float:
    with seeded(setup.init_seed(TrialSpec(load, seed, 0.1))):
        return float(torch.rand(()))


@pytest.mark.parametrize(("mood", "reason"), [("kill some", "WorkerCrashedError"), ("raise some", "seed is poison")])
def test_a_poisonous_trial_is_recorded_as_failed_and_stops_nobody(
    capbench, expected, ray_words, tmp_path: Path, mood: str, reason: str
) -> None:
    sets, victim = poisoned(mood, tmp_path, 2)
    words = ("--plugin", str(GREMLIN), "run", *WILD, "--at", "8", "--seeds", "2", *sets)
    done = capbench(*words, *ray_words, "--json")
    assert done.code == 0, done.err
    trials = json.loads(done.out)["trials"]
    (failed,) = [trial for trial in trials if trial["status"] == "failed"]
    assert failed["seed"] == victim
    assert reason in failed["error"]
    assert mood == "kill some" or "Traceback" in failed["error"]
    spared = [trial for trial in expected(*words)["trials"] if trial["seed"] != victim]
    assert [trial for trial in trials if trial is not failed] == spared


def test_a_lost_node_costs_time_and_nothing_else(
    capbench, expected, nodes: RayNodes, ray_words, tmp_path: Path
) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()
    words = ("--plugin", str(GREMLIN), "run", *WILD, "--at", "8", "--seeds", "4", *wild("slow", folder))

    def lose_a_node() -> None:
        assert wait_for(lambda: any(folder.iterdir()))
        nodes.kill(next(folder.iterdir()).name)

    loser = threading.Thread(target=lose_a_node)
    loser.start()
    done = capbench(*words, *ray_words, "--json")
    loser.join()
    nodes.add()
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["trials"] == expected(*words)["trials"]
    assert len(list(folder.iterdir())) == 2, "another node took over"


def test_a_driver_killed_and_started_again_goes_on_from_there(capbench, expected, ray_words, tmp_path: Path) -> None:
    folder, home = tmp_path / "marks", Path(os.environ["CAPBENCH_HOME"])
    folder.mkdir()
    words = ("--plugin", str(GREMLIN), "run", *WILD, "--budget", "6", *wild("slow", folder))
    out, into = os.pipe()
    command = [sys.executable, "-m", "tests.faults.driver", str(into), *words, *ray_words, "--json"]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[into], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(into)
    said = b""
    with os.fdopen(out, "rb", buffering=0) as pipe:
        while said.count(b"\n") < 3:  # the store is open, and two trials are committed
            assert select.select([pipe], [], [], PATIENCE_SECONDS)[0], said
            said += pipe.read(65536)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        said += pipe.read() or b""
    committed = set(said[: said.rfind(b"\n")].decode().split()) - {"open"}
    with sqlite3.connect(home / "capbench.sqlite") as db:
        assert committed <= {key for (key,) in db.execute("SELECT key FROM trials")}
    db.close()
    done = capbench(*words, *ray_words, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["timing"]["trials_reused"] >= len(committed) >= 2
    assert found["timing"]["trials_trained"] > 0
    assert found["trials"] == expected(*words)["trials"]


PLUGIN = GREMLIN.read_text()


def installed(site: Path, name: str, version: str, source: str) -> None:
    """A distribution as pip would leave it in a folder."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(source)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[capbench]\n{name} = {name}\n")


@pytest.mark.parametrize(
    ("name", "there", "message"),
    [
        (
            "gone",
            None,
            "has no gone, which 'gone' comes from; the driver has 1.2: install it there: pip install 'gone==1.2'",
        ),
        ("older", ("1.1", ""), "has older 1.1, which 'older' comes from; the driver has 1.2: install it there"),
        ("other", ("1.2", "CHANGED = 1\n"), "has other code of 'other' under the name other 1.2 (hash "),
        ("broken", ("1.2", "import not_there\n"), "cannot import 'broken' of broken 1.2: ModuleNotFoundError"),
    ],
)
def test_a_plugin_that_workers_have_otherwise_is_named_before_work_starts(
    capbench, nodes: RayNodes, ray_words, tmp_path: Path, monkeypatch, name: str, there, message: str
) -> None:
    sys.modules.pop(name, None)
    source = PLUGIN.replace('"gremlin"', f'"{name}"')
    installed(tmp_path / "site", name, "1.2", source)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    if there:
        installed(nodes.site, name, there[0], source + there[1])
    words = ("--task", "rgr", "--arch", name, "--preset", "smoke", *AT, *ray_words)
    for command in (("run", *words), ("sweep", *words, "--grid", "arch.salt=1,2")):
        done = capbench(*command)
        assert done.code == 2, done.err
        last = done.err.splitlines()[-1]
        assert last.startswith("error: node "), done.err
        assert message in last
    assert not Store(Path(os.environ["CAPBENCH_HOME"])).counts()[0]
    sys.modules.pop(name, None)


def test_a_gpu_that_the_cluster_does_not_have_is_refused_at_once(capbench, ray_words) -> None:
    done = capbench("run", *PAIR, "--device", "cuda", *ray_words)
    assert done.code == 2
    assert done.err == (
        "error: no GPU on the 3 nodes of the Ray cluster; use --device cpu, or add a node that has one\n"
    )


def test_another_cluster_than_the_one_joined_is_refused(capbench, nodes: RayNodes) -> None:
    connect(nodes.address)
    done = capbench("run", *PAIR, "--executor", "ray", "--address", "127.0.0.1:1")
    assert done.code == 2
    assert "this process has joined the Ray cluster at " in done.err
