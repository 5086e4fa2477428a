"""Whatever a plugin does while it is loaded, the program goes on, others' results do not change, and it is named."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch

from capbench.errors import PluginFailed
from capbench.registry.containment import PluginWarning
from capbench.registry.registry import Registry, load_registry

GOOD = '''
from typing import ClassVar
import torch
from capbench import Architecture, hookimpl

class Leaky(Architecture):
    """Does something at import."""
    name: ClassVar[str] = "leaky"
    def build(self, signature):
        return torch.nn.Linear(1, 1)

@hookimpl
def capbench_architectures():
    {in_hook}
    return [Leaky]
'''


def plugin(at_import: str = "pass", in_hook: str = "pass") -> str:
    return f"{at_import}\n{GOOD.format(in_hook=in_hook)}"


def state() -> dict[str, object]:
    return {
        "cwd": Path.cwd(),
        "environment": dict(os.environ),
        "random": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "seed": torch.get_rng_state().tolist(),
        "alarm": signal.getsignal(signal.SIGALRM),
        "exit": os._exit,
    }


LEAKS = {
    "the working directory": "import os; os.chdir('/')",
    "environment variables": "import os; os.environ['OMP_NUM_THREADS'] = '7'; os.environ.pop('HOME', None)",
    "the seed of `random`": "import random; random.seed(3)",
    "the seed of numpy": "import numpy; numpy.random.seed(3)",
    "torch's default dtype": "import torch; torch.set_default_dtype(torch.float64)",
    "torch's default device": "import torch; torch.set_default_device('meta')",
    "torch's threads": "import torch; torch.set_num_threads(torch.get_num_threads() + 1)",
    "torch's determinism": "import torch; torch.use_deterministic_algorithms(True)",
    "torch's gradients": "import torch; torch.set_grad_enabled(False)",
    "torch's matmul precision": "import torch; torch.set_float32_matmul_precision('medium')",
    "torch's seed": "import torch; torch.manual_seed(3)",
}


def load_with_warning(match: str) -> Registry:
    with pytest.warns(PluginWarning, match=match):
        return load_registry()


@pytest.mark.parametrize("where", ["at_import", "in_hook"])
@pytest.mark.parametrize("what", LEAKS)
def test_what_a_plugin_changes_is_undone_and_named_and_the_plugin_stays(distribution, what: str, where: str) -> None:
    distribution("leaky", plugin(**{where: LEAKS[what]}))
    before = state()
    registry = load_with_warning(f"plugin 'leaky' of leaky 1.2.* changed .*{what} while it was loaded")
    assert state() == before
    assert "leaky" in registry.architectures


def test_a_plugin_that_changes_nothing_gets_no_warning(distribution) -> None:
    distribution("leaky", plugin("import torch._dynamo, torch.func, json"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "leaky" in load_registry().architectures


def _watched() -> list[object]:
    from capbench.engine.stack import make_module
    from capbench_plugins.mha import Mha

    functional = (torch.nn.functional.softmax, torch.nn.functional.gelu, torch.nn.Linear.forward, torch.nn.init.normal_)
    return [torch.matmul, *functional, Mha.build, make_module]


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ("import torch; torch.matmul = lambda a, b: a", "torch.matmul"),
        ("import torch; torch.nn.functional.softmax = None", "torch.nn.functional.softmax"),
        ("import torch; torch.Tensor.__matmul__ = lambda a, b: a", "Tensor.__matmul__"),
        ("import torch; torch.nn.Module.__call__ = lambda *a: 0", "Module.__call__"),
        ("import torch; torch.nn.functional.gelu = torch.nn.functional.relu", "torch.nn.functional.gelu"),
        ("import torch; torch.nn.Linear.forward = torch.nn.Identity.forward", "Linear.forward"),
        ("import torch; torch.nn.init.normal_ = torch.nn.init.zeros_", "torch.nn.init.normal_"),
        ("import torch; torch.matmul = torch.no_grad()(torch.matmul)", "torch.matmul"),
        ("import capbench_plugins.mha as m; m.Mha.build = lambda *_: None", "Mha.build"),
        ("import capbench.engine.stack as s; s.make_module = None", "capbench.engine.stack.make_module"),
    ],
)
def test_a_plugin_that_patches_torch_is_refused_and_the_patch_undone(distribution, patch: str, name: str) -> None:
    before = _watched()
    distribution("leaky", plugin(patch))
    registry = load_with_warning(f"plugin 'leaky' of leaky 1.2.* left out.*replaces {name}")
    assert "leaky" not in registry.architectures
    assert _watched() == before
    assert torch.eye(2) @ torch.eye(2) is not None
    assert "rgr" in registry.tasks


@pytest.mark.parametrize("call", ["_exit(3)", "abort()", "execv('/bin/true', ['true'])"])
def test_a_plugin_that_ends_the_program_is_left_out_by_name(distribution, call: str) -> None:
    distribution("leaky", plugin(f"import os; os.{call}"))
    registry = load_with_warning(rf"'leaky' of leaky 1.2.* left out.*calls os.{call.partition('(')[0]}")
    assert "mha" in registry.architectures


@pytest.mark.parametrize("loop", ["while True: pass", "import time; time.sleep(600)"])
def test_a_plugin_that_hangs_is_left_out_by_name(distribution, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capbench.registry.containment.LOAD_SECONDS", 0.3)
    distribution("leaky", plugin(loop))
    registry = load_with_warning("'leaky' of leaky 1.2.* left out: LoadTimedOut: loading it took more than 0.3 s")
    assert "mha" in registry.architectures
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_hang_that_catches_exceptions_is_ended_too(distribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capbench.registry.containment.LOAD_SECONDS", 0.3)
    distribution("leaky", plugin("while True:\n    try:\n        while True: pass\n    except Exception: pass"))
    load_with_warning("'leaky' of leaky 1.2.* left out: LoadTimedOut")


def test_a_flood_of_output_is_cut_and_stays_off_stdout(distribution, capsys: pytest.CaptureFixture[str]) -> None:
    distribution("leaky", plugin("import sys\nfor _ in range(1000): print('x' * 1000); print('y', file=sys.stderr)"))
    assert "leaky" in load_registry().architectures
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err) < 2100
    assert "more characters]" in shown.err


def test_strict_loading_stops_at_a_plugin_that_patches_torch(distribution) -> None:
    distribution("leaky", plugin("import torch; torch.matmul = None"))
    with pytest.raises(PluginFailed, match=r"leaky 1.2.*replaces torch.matmul"):
        load_registry(strict=True)


@pytest.mark.slow
def test_the_program_survives_a_plugin_file_that_exits(tmp_path: Path) -> None:
    file = tmp_path / "leaky.py"
    file.write_text(plugin("import os; os._exit(0)"))
    words = [sys.executable, "-m", "capbench.cli", "--plugin", str(file), "plugins"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "leaky.py" in done.stderr
    assert "calls os._exit" in done.stderr


CALLED = """
from typing import ClassVar
import torch
from capbench import Architecture, hookimpl

class Scores(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(d, d))

    def forward(self, items):
        {in_forward}
        return items @ self.W @ items.T

class Leaky(Architecture):
    \"\"\"Does something when it is called.\"\"\"
    name: ClassVar[str] = "leaky"
    def build(self, signature):
        {in_build}
        return Scores(signature.d_item)

@hookimpl
def capbench_architectures():
    return [Leaky]
"""
RUN = ("--task", "rgr", "--preset", "smoke", "--at", "8", "--seeds", "2", "--lr", "0.2", "--steps", "25", "--json")
PATCHES = {
    "torch.nn.functional.gelu": "torch.nn.functional.gelu = torch.nn.functional.relu",
    "Linear.forward": "torch.nn.Linear.forward = torch.nn.Identity.forward",
}


@pytest.mark.parametrize("where", ["in_build", "in_forward"])
@pytest.mark.parametrize("what", [*(what for what in LEAKS if what != "torch's gradients"), *PATCHES])
def test_what_a_plugin_changes_when_it_is_called_is_undone_and_named(
    distribution, capbench, what: str, where: str
) -> None:
    leak = {**LEAKS, **PATCHES}[what]
    distribution("leaky", CALLED.format(**{"in_build": "pass", "in_forward": "pass", where: leak}))
    capbench("bounds", "--task", "rgr", "--arch", "mha")  # imports what a command imports, which draws from `random`
    before = state() | {"functions": _watched()}
    done = capbench("run", "--arch", "leaky", "--compile", "off", *RUN)
    assert state() | {"functions": _watched()} == before
    if what != "torch's seed" or where == "in_forward":  # the engine seeds each build, and restores the seed itself
        assert "plugin 'leaky' of leaky 1.2" in done.err, done.err
        assert f"changed {what}" in done.err


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_plugin_that_changes_nothing_when_it_is_called_gets_no_warning(distribution, capbench, mode: str) -> None:
    distribution("leaky", CALLED.format(in_build="pass", in_forward="pass"))
    done = capbench("run", "--arch", "leaky", "--compile", mode, *RUN)
    assert done.code == 0
    assert "changed" not in done.err


def test_the_next_architecture_has_the_same_results_after_one_that_leaks(
    distribution, capbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = LEAKS["torch's default dtype"] + "; torch.matmul = torch.Tensor.matmul = lambda a, b: a"
    distribution("leaky", CALLED.format(in_build=build, in_forward="pass"))
    alone = json.loads(capbench("run", "--arch", "bilinear", *RUN).out)
    monkeypatch.setenv("CAPBENCH_HOME", str(tmp_path / "later"))
    capbench("run", "--arch", "leaky", *RUN)
    later = json.loads(capbench("run", "--arch", "bilinear", *RUN).out)
    assert later["trials"] == alone["trials"]
