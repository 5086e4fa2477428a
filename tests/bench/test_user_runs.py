"""What a user gets: whole commands, cold and warm, against plain loops over the very same trials."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from capbench.documents.result import Result

SIZES = (
    "task.n_keys=20", "task.n_queries=20", "task.n_values=20",
    "arch.d_model=8", "arch.n_heads=2", "arch.d_qk=4", "arch.d_vo=4",
)  # fmt: skip
PAIRS = (("triples", "aot", SIZES), ("bigrams", "aot", ()), ("rgr", "mha", ()), ("sequences", "mha", ()))
"""The standard pairs, with the settings that differ from the defaults."""
LOOP_SECONDS = 6.0
"""How long plain loops train: one alone, and then two at once."""
CHOSEN_BY_USER = ("OMP_NUM_THREADS", "CAPBENCH_PLUGINS")
"""Variables that would change a run; an earlier benchmark of this process may have set them."""


@dataclass(frozen=True)
class UserRun:
    """The command of one pair, and the folder of its store and its compiled steps."""

    task: str
    architecture: str
    settings: tuple[str, ...]
    folder: Path

    @property
    def document(self) -> Path:
        """Where the result of the latest run is."""
        return self.folder / "result.json"

    @property
    def result(self) -> Result:
        """The result of the latest run."""
        return Result.model_validate_json(self.document.read_text(encoding="utf-8"))

    def run(self) -> None:
        """The whole command, as a user types it."""
        environment = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY_USER}
        settings = [word for setting in self.settings for word in ("--set", setting)]
        program = str(Path(sys.executable).with_name("capbench"))
        command = [program, "run", "--task", self.task, "--arch", self.architecture, *settings, "--json"]
        with self.document.open("w", encoding="utf-8") as stdout:
            done = subprocess.run(
                command,
                env={**environment, "CAPBENCH_HOME": str(self.folder / "home")},
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr

    def empty_store(self) -> None:
        """Deletes all but the compiled steps."""
        for path in (self.folder / "home").iterdir():
            if path.name != "compiled":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def time_loops(self, n_loops: int) -> list[dict[str, float]]:
        """What plain loops take over samples of the trials, all at the same time."""
        script = str(Path(__file__).with_name("plain_loop.py"))
        command = [sys.executable, script, str(self.document), str(LOOP_SECONDS)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with ExitStack() as stack:
            loops = [
                stack.enter_context(
                    subprocess.Popen(
                        [*command, str(seed)],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for seed in range(n_loops)
            ]
            assert all(loop.stdout.readline() == "ready\n" for loop in loops)
            for loop in loops:
                loop.stdin.write("start\n")
                loop.stdin.flush()
            return [json.loads(loop.communicate()[0]) for loop in loops]


@pytest.fixture(scope="module", params=PAIRS, ids=[f"{task} x {arch}" for task, arch, _ in PAIRS])
def user_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> UserRun:
    """One pair in a folder of its own: all tests of a pair run before those of the next."""
    return UserRun(*request.param, tmp_path_factory.mktemp("user"))


def time_run(benchmark, user_run: UserRun, variant: str) -> None:
    benchmark.group = "user runs"  # before the call, which records it
    benchmark.pedantic(user_run.run, rounds=1)
    result = user_run.result
    assert result.timing.trials_reused == 0
    record(
        benchmark, user_run, variant, trials=len(result.trials), lane_steps=sum(trial.steps for trial in result.trials),
        compiled_share=result.timing.compiled_lane_steps / result.timing.lane_steps,
    )  # fmt: skip


def time_loops(benchmark, user_run: UserRun, variant: str, n_loops: int) -> None:
    benchmark.group = "user runs"
    loops = benchmark.pedantic(user_run.time_loops, (n_loops,), rounds=1)
    record(
        benchmark, user_run, variant, loops=n_loops, trials=sum(loop["trials"] for loop in loops),
        steps=sum(loop["steps"] for loop in loops),
        seconds_per_step=statistics.fmean(loop["seconds_per_step"] for loop in loops) / n_loops,
    )  # fmt: skip


def record(benchmark, user_run: UserRun, variant: str, **measured: float) -> None:
    benchmark.extra_info.update(pair=f"{user_run.task} × {user_run.architecture}", variant=variant, **measured)


def test_cold(benchmark, user_run: UserRun) -> None:
    """Nothing is stored and nothing is compiled."""
    time_run(benchmark, user_run, "cold")


def test_one_loop(benchmark, user_run: UserRun) -> None:
    """Between the two runs, because machines drift."""
    time_loops(benchmark, user_run, "one loop", 1)


def test_two_loops(benchmark, user_run: UserRun) -> None:
    time_loops(benchmark, user_run, "two loops", 2)


def test_warm(benchmark, user_run: UserRun) -> None:
    """Nothing is stored, and the step has been compiled before."""
    user_run.empty_store()
    time_run(benchmark, user_run, "warm")
