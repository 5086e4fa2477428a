"""What cannot be is refused in one line with the remedy, within seconds: no Ray, no cluster, no GPU, wrong words."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

import capbench as cb
from capbench.errors import BadSetting, ClusterUnavailable, DeviceUnavailable
from capbench.executors.backends import open_backend
from capbench.executors.ray import cluster, connection, worker
from capbench.executors.ray.cluster import Slots, threads_per_worker
from capbench.executors.target import ComputeTarget

RUN = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--executor", "ray")


@pytest.fixture(autouse=True)
def in_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if ray.is_initialized():
        ray.shutdown()


def test_without_ray_the_extra_is_named(capbench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("capbench.executors.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    for words in (RUN, ("suite", "smoke", "--executor", "ray"), ("sweep", *RUN[1:], "--grid", "arch.n_heads=1,2")):
        done = capbench(*words)
        assert done.code == 2, done.err
        assert done.err.splitlines()[-1] == (
            "error: --executor ray needs Ray, which is not installed here; pip install 'capbench[ray]'"
        )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_listens_is_refused_at_once(capbench, address: str) -> None:
    started = time.monotonic()
    done = capbench(*RUN, "--address", address)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"error: no Ray cluster answers at {address}: ")
    assert "ray start --head" in line
    assert time.monotonic() - started < 10


def test_the_address_in_the_environment_is_the_one_that_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterUnavailable, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        open_backend(ComputeTarget(executor="ray"))


def test_where_no_cluster_runs_and_none_can_be_started_the_remedy_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterUnavailable, match=r"none could be started: Could not find .*; start one with `ray st"):
        open_backend(ComputeTarget(executor="ray"))


def test_where_no_cluster_runs_auto_starts_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def init(address: str, **_: object) -> None:
        asked.append(address)
        if address == "auto":
            raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.warns(connection.LocalRayStarted, match="started one that ends with this process"):
        connection.connect("auto")
    assert asked == ["auto", "local"]


def test_a_cluster_of_another_version_is_refused_with_what_ray_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("Version mismatch: the cluster was started with Ray: 1.0")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(connection, "_check_port", lambda _: None)
    with pytest.raises(ClusterUnavailable, match="at head:6379 cannot be joined: Version mismatch"):
        open_backend(ComputeTarget(executor="ray", address="head:6379"))


def test_a_server_that_died_at_birth_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([ConnectionError(f"{connection.NOT_STARTED}: it died"), None])

    def init(**_: object) -> None:
        error = next(said)
        if error is not None:
            raise error

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection, "_check_port", lambda _: None)
    connection.connect("ray://head:10001")
    assert next(said, "none left") == "none left"


def test_a_port_that_is_no_cluster_is_given_up_after_seconds(tmp_path) -> None:
    """In a process of its own: what Ray has begun there cannot be taken back."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "from capbench.executors.ray import connection\n"
        "from capbench.errors import ClusterUnavailable\n"
        "connection.JOIN_SECONDS = 2\n"
        "try:\n"
        f"    connection.connect('127.0.0.1:{server.server_port}')\n"
        "except ClusterUnavailable as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    server.shutdown()
    server.server_close()
    assert "is not a Ray cluster, or did not answer within 2 s; check --address" in done.stdout


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"executor": "rya"}, "--executor takes local or ray, got 'rya'"),
        ({"address": "head:6379"}, "--address and --gpus are for a Ray cluster; add --executor ray"),
        ({"gpus": 0.5}, "--address and --gpus are for a Ray cluster; add --executor ray"),
        (
            {"executor": "ray", "address": "head"},
            "--address takes auto, HOST:PORT or ray://HOST:PORT, got 'head'",
        ),
        ({"executor": "ray", "address": "http://head:1"}, "--address takes auto"),
        ({"executor": "ray", "gpus": 1.5}, "--gpus takes a share of one GPU, above 0 and up to 1, got 1.5"),
    ],
)
def test_words_that_say_nothing_are_refused_before_anything_is_asked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message.replace("(", r"\(")):
        ComputeTarget(**values)


def test_the_python_api_takes_the_same_words_and_refuses_the_same() -> None:
    with pytest.raises(BadSetting, match="add --executor ray"):
        cb.run(task="rgr", arch="mha", address="head:6379")
    with pytest.raises(ClusterUnavailable, match="no Ray cluster answers"):
        cb.run(task="rgr", arch="mha", executor="ray", address="127.0.0.1:1")


def nodes_with(*resources: dict[str, float]) -> list[dict[str, object]]:
    return [{"NodeID": f"{i}", "Alive": True, "Resources": each} for i, each in enumerate(resources)]


@pytest.fixture
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nodes_with({"CPU": 8, "GPU": 2}, {"CPU": 2, "GPU": 8}, {"CPU": 3})
    monkeypatch.setattr(ray, "nodes", lambda: found)


@pytest.mark.parametrize(
    ("device", "threads", "gpus", "slots"),
    [
        ("cpu", 1, 1.0, 8 + 2 + 3),
        ("cpu", 4, 1.0, 2 + 0 + 0),
        ("cuda", 1, 1.0, 2 + 2 + 0),
        ("cuda", 1, 0.5, 4 + 2 + 0),
        ("cuda", 1, 0.3333, 6 + 2 + 0),
        ("cuda", 1, 0.3, 6 + 2 + 0),  # a share never spans two GPUs: what three leave of one is lost
        ("cuda", 4, 0.5, 2 + 0 + 0),
    ],
)
@pytest.mark.usefixtures("three_nodes")
def test_slots_are_what_cpus_and_shares_of_gpus_allow_on_each_node(
    device: str, threads: int, gpus: float, slots: int
) -> None:
    assert Slots(ComputeTarget(device, "ray", gpus=gpus), torch.device(device), threads).count() == slots


@pytest.mark.parametrize(("node", "n_workers"), [("0", 4), ("2", 1), ("gone", 1)])
@pytest.mark.usefixtures("three_nodes")
def test_a_worker_has_its_share_of_the_memory_of_its_node(
    node: str, n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: node))
    worker._n_workers.cache_clear()
    assert worker._n_workers(torch.device("cuda"), 1, 0.5) == n_workers
    worker._n_workers.cache_clear()


@pytest.mark.usefixtures("three_nodes")
def test_auto_takes_the_gpus_of_a_cluster_and_what_no_node_has_is_refused() -> None:
    assert cluster._device(ComputeTarget("auto", "ray"), 1).type == "cuda"
    assert cluster._device(ComputeTarget("cpu", "ray"), 1).type == "cpu"
    with pytest.raises(DeviceUnavailable, match="no node of the Ray cluster has the 9 CPUs that a trial group takes"):
        cluster._device(ComputeTarget("cpu", "ray"), 9)
    for device in ("cuda:1", "mps"):
        with pytest.raises(DeviceUnavailable, match="on a Ray cluster --device takes auto, cpu or cuda, got"):
            cluster._device(ComputeTarget(device, "ray"), 1)


def test_a_cluster_that_stays_empty_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nodes_with({"CPU": 2})
    monkeypatch.setattr(ray, "nodes", lambda: found)
    monkeypatch.setattr(cluster, "SLOT_COUNT_SECONDS", 0)
    slots = Slots(ComputeTarget("cpu", "ray"), torch.device("cpu"), 1)
    assert slots.count() == 2
    found.clear()
    assert slots.count() == 0, "nodes may come back"
    monkeypatch.setattr(cluster, "EMPTY_SECONDS", -1)
    with pytest.raises(ClusterUnavailable, match=r"no node for a trial group .* stored: start nodes and give the same"):
        slots.count()


@pytest.mark.parametrize(("said", "threads"), [(None, 1), ("4", 4), ("0", 1), ("4,2", 1), ("", 1)])
def test_a_worker_has_one_thread_unless_the_usual_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, said: str | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert threads_per_worker() == threads
