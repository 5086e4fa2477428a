"""A Ray cluster that the tests of a module share, and one thread for those that compare numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.executors.nodes import RayNodes, two_nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    with two_nodes(tmp_path_factory.mktemp("site")) as started:
        yield started


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums depend on the number of threads: here as on the workers, one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
