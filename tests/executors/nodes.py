"""A real Ray cluster of several nodes on this machine, for tests and benchmarks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray
from ray.cluster_utils import Cluster

NODE = {"object_store_memory": 80 * 2**20, "num_cpus": 1, "include_log_monitor": False}
T = TypeVar("T")

PATIENCE_SECONDS = 300.0
"""For what takes seconds on a machine with nothing else to do."""


@dataclass(frozen=True)
class RayNodes:
    """A cluster: a head that trains nothing, and nodes of one CPU each."""

    cluster: Cluster
    site: Path
    """A folder that every node's Python looks into."""

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def client_address(self) -> str:
        return f"ray://127.0.0.1:{self.cluster.head_node._ray_params.ray_client_server_port}"

    def add(self) -> Any:
        return at_last(lambda: self.cluster.add_node(**NODE, env_vars={"PYTHONPATH": str(self.site)}))

    def kill(self, node_id: str) -> None:
        """As a machine that loses its power: nothing on it says goodbye."""
        (node,) = [node for node in self.cluster.worker_nodes if node.node_id == node_id]
        self.cluster.remove_node(node, allow_graceful=False)


@contextmanager
def two_nodes(site: Path) -> Iterator[RayNodes]:
    """Starts a cluster, and leaves no process of it behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's own is that of work with no hurry
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CAPBENCH_HOME", str(site / "home"))  # of the workers
        patch.delenv("RAY_ADDRESS", raising=False)
        head = {**NODE, "num_cpus": 0, "include_dashboard": False, "ray_client_server_port": _free_port()}
        nodes = RayNodes(at_last(lambda: Cluster(initialize_head=True, head_node_args=head)), site)
        session = Path(nodes.cluster.head_node.get_session_dir_path()).name
        try:
            nodes.add()
            nodes.add()
            yield nodes
        finally:
            ray.shutdown()
            nodes.cluster.shutdown()
    assert wait_for(lambda: not _processes_of(session)), _processes_of(session)


def at_last(start: Callable[[], T], tries: int = 5) -> T:
    """Starts something that Ray gives half a minute, which a busy machine may not keep to."""
    for _ in range(tries - 1):
        try:
            return start()
        except Exception as error:  # Ray raises nothing more special
            if "timed out during startup" not in str(error):
                raise
    return start()


def wait_for(condition: Callable[[], object]) -> bool:
    """Whether something came true in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _processes_of(session: str) -> list[str]:
    """Command lines of the processes of a Ray session that are still there."""
    lines = {int(entry.name): _words(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    return [words for pid, words in lines.items() if session in words and pid != os.getpid()]


def _words(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
