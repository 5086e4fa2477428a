"""The Python API as a notebook uses it: the command's own path, typed, and safe to show."""

from __future__ import annotations

import base64
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import capbench as cb
from capbench.errors import BadDocument, BadSetting, CapbenchError, LoadOutOfRange, UnknownName
from capbench.measure.options import RunOptions
from capbench.registry.provenance import code_hash
from capbench.store.store import Store

PAIR = {"task": "rgr", "arch": "mha", "preset": "smoke"}
QUICK = {**PAIR, "at": 8, "seeds": 2, "steps": 50, "learning_rates": (0.4,)}
COMMAND = "run --task rgr --arch mha --preset smoke --at 8 --seeds 2 --steps 50 --lr 0.4 --json"
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\ufffe'


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cb.Run]:
    """One quick run that most tests look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield cb.run(**QUICK)


def test_neither_the_import_nor_the_name_imports_torch() -> None:
    code = "import sys, capbench; capbench.run, capbench.load, capbench.Run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_option_of_the_command_is_a_keyword_of_its_own() -> None:
    renamed = {"set": "settings", "rates": "learning_rates"}
    parameters = inspect.signature(cb.run).parameters
    assert {renamed.get(name, name) for name in RunOptions.model_fields} == set(parameters) - {"plugins", "progress"}
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    plain = {name: f for name, f in RunOptions.model_fields.items() if name not in {"task", "arch", "set"}}
    assert all(parameters[renamed.get(name, name)].default == f.default for name, f in plain.items())


def test_a_run_is_the_commands_run(capbench) -> None:
    told = capbench(*COMMAND.split())
    document = json.loads(told.out)
    run = cb.run(**QUICK)
    assert run.result.timing.trials_trained == 0
    assert run.result.run_id == document["run_id"]
    assert run.result.command == document["command"]
    assert run.capacity.model_dump(mode="json") == document["capacity"]


def test_settings_reach_the_fields_they_name() -> None:
    settings = {"task.n_items": 12, "task.graph": "permutation", "arch.n_heads": 2, "solver.decay": "linear"}
    result = cb.run(**PAIR, at=8, seeds=1, settings=settings, learning_rates=[0.2], steps=25).result
    assert (result.task.params["n_items"], result.task.params["graph"]) == (12, "permutation")
    assert (result.architecture.params["n_heads"], result.solver.params["decay"]) == (2, "linear")
    assert (result.protocol.learning_rates, result.protocol.steps) == ((0.2,), 25)


def test_nothing_is_printed_unless_progress_is_asked_for(capfd) -> None:
    cb.run(**QUICK)
    assert capfd.readouterr() == ("", "")
    cb.run(**QUICK, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "adam, round 1" in err


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"task": "rgx"}, UnknownName, "did you mean 'rgr'"),
        ({"at": 10**6}, LoadOutOfRange, "has 1 to 276 edges"),
        ({"at": 0}, BadSetting, "at takes a whole number from 1, got 0"),
        ({"seeds": 2.5}, BadSetting, "seeds takes a whole number from 1, got 2.5"),
        ({"ci_width": 0}, BadSetting, "ci_width takes a share from"),
        ({"learning_rates": [0.0]}, BadSetting, "above 0, got 0.0"),
        ({"learning_rates": [float("nan")]}, BadSetting, "above 0, got nan"),
        ({"trial_timeout": -1}, BadSetting, "trial_timeout takes seconds"),
        ({"dtype": "float16"}, BadSetting, "dtype takes float32, float64"),
        ({"compile_mode": "maybe"}, BadSetting, "compile_mode takes auto, on or off"),
        ({"settings": {"task.n_items": object()}}, BadSetting, "must be JSON values"),
        ({"settings": {"task.n_items": "@/etc/hostname"}}, BadSetting, "got '@/etc/hostname'"),
        ({"settings": {"n_items": 3}}, BadSetting, r"task\.FIELD=VALUE"),
        ({"params": 100, "match": "mlp"}, BadSetting, "give one of them"),
        ({"plugins": ["absent.py"]}, CapbenchError, "absent.py"),
    ],
)
def test_a_mistake_raises_one_line_before_anything_is_trained(changes, error, words, own_store) -> None:
    with pytest.raises(error, match=words) as caught:
        cb.run(**{**QUICK, **changes})
    assert "\n" not in str(caught.value)
    assert not own_store.exists()


def test_whole_numbers_of_numpy_will_do(done) -> None:
    import numpy as np

    assert cb.run(**{**QUICK, "seeds": np.int64(2), "at": np.int32(8)}).capacity == done.capacity


def test_a_plugin_file_is_used_as_the_command_uses_it(tmp_path, monkeypatch) -> None:
    source = '''
"""A threshold and nothing else."""
import torch
from typing import ClassVar
from capbench import Architecture, hookimpl

class Flat(Architecture):
    """Says the same of every pair."""
    name: ClassVar[str] = "flat_scores"

    def build(self, signature):
        return Scores()

class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(()))

    def forward(self, items):
        return self.level + 0 * items @ items.mT

@hookimpl
def capbench_architectures():
    return [Flat]
'''
    (tmp_path / "flat_scores.py").write_text(source)
    run = cb.run(**{**QUICK, "arch": "flat_scores"}, plugins=[tmp_path / "flat_scores.py"])
    monkeypatch.delitem(sys.modules, "flat_scores")
    assert run.result.architecture.plugin.startswith("flat_scores.py sha256:")
    assert run.capacity.estimate == 0


def test_the_table_is_what_the_command_prints_and_the_repr_is_a_line(done) -> None:
    assert "f1 ≥ 0.99" in done.table()
    assert "next:\n" in done.table()
    assert re.fullmatch(r"<capbench run \w+: rgr × mha, success rate .* hold 8 edges, 95%: .*>", repr(done))


def test_a_plot_is_a_chart_and_a_file_where_one_is_named(done, tmp_path) -> None:
    assert "layer" in done.plot().to_dict()
    done.plot(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")
    with pytest.raises(BadSetting, match=r"\.png, \.svg, \.html, \.pdf"):
        done.plot(tmp_path / "curve.gif")


def test_a_frame_has_one_row_per_trial_and_one_column_per_metric(done) -> None:
    polars = pytest.importorskip("polars")
    frame = done.to_frame()
    assert isinstance(frame, polars.DataFrame)
    assert len(frame) == len(done.result.trials)
    assert {"load", "seed", "learning_rate", "status", "metric.f1", "metric.bits", "key"} <= set(frame.columns)
    assert frame["metric.f1"].to_list() == [t.metrics["f1"] for t in done.result.trials]


def test_without_polars_the_frame_is_pandas_and_without_both_the_remedy_is_named(done, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(
        sys.modules, "pandas", SimpleNamespace(DataFrame=lambda columns: ("pandas", len(columns["key"])))
    )
    assert done.to_frame() == ("pandas", len(done.result.trials))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CapbenchError, match=r"pip install 'capbench\[frames\]'"):
        done.to_frame()


def test_a_notebook_shows_the_answer_the_curve_and_the_bounds(done) -> None:
    html = done._repr_html_()
    for words in ("rgr × mha", "success rate", "95%", "counting.floor", "[derived]", done.result.command):
        assert words in html
    assert "<svg" in _picture(html)


def test_a_hostile_document_stays_text_in_a_notebook(done) -> None:
    result = done.result
    named = {part: getattr(result, part).model_copy(update={"name": HOSTILE}) for part in ("task", "architecture")}
    bounds = tuple(b.model_copy(update={"id": HOSTILE, "note": HOSTILE}) for b in result.bounds)
    protocol = result.protocol.model_copy(update={"parameter": HOSTILE, "varies": HOSTILE})
    changes = {**named, "bounds": bounds, "protocol": protocol, "command": HOSTILE}
    html = cb.Run(result.model_copy(update=changes), HOSTILE)._repr_html_()
    page = Markup()
    page.feed(html)
    assert page.tags == {"div", "h4", "table", "thead", "tbody", "tr", "th", "td", "img", "p", "code"}
    assert page.attributes == {"class", "alt", "style", "src"}
    assert "\x1b" not in html
    assert "<script" not in _picture(html)
    assert "&lt;script&gt;" in html


def test_a_finished_run_is_found_by_its_id_or_read_from_a_file(tmp_path) -> None:
    run = cb.run(**QUICK)
    assert cb.load(run.result.run_id) == cb.load(run.result.run_id[:6]) == cb.load("latest") == run
    path = tmp_path / "result.json"
    path.write_text(run.result.model_dump_json())
    assert cb.load(path) == cb.load(str(path)) == run


def test_a_run_that_is_not_there_is_refused_with_a_remedy(tmp_path, own_store) -> None:
    with pytest.raises(UnknownName, match="no stored run 'latest': the store is empty"):
        cb.load("latest")
    with closing(Store(own_store)), pytest.raises(UnknownName, match=r"no run with the name 'ffff'.*capbench results"):
        cb.load("ffff")
    with pytest.raises(BadDocument, match="no such file"):
        cb.load(tmp_path / "absent.json")
    (tmp_path / "torn.json").write_text('{"run_id": ')
    with pytest.raises(BadDocument, match=r"torn\.json"):
        cb.load(tmp_path / "torn.json")


def test_a_file_of_a_task_that_is_not_installed_can_still_be_read(done, tmp_path) -> None:
    task = done.result.task.model_copy(update={"name": "elsewhere"})
    path = tmp_path / "result.json"
    path.write_text(done.result.model_copy(update={"task": task}).model_dump_json())
    assert "hold 8 facts" in cb.load(path).table()


class Markup(HTMLParser):
    """The tags and attributes that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attributes)


def _picture(html: str) -> str:
    """The picture embedded in a page."""
    found = re.search(r"data:image/svg\+xml;base64,([^\"]+)", html)
    assert found is not None
    return base64.b64decode(found[1]).decode()


@pytest.fixture
def session(monkeypatch):
    """Runs source as a notebook's kernel does: in a module without a file."""
    module = ModuleType("session_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(source: str) -> dict[str, Any]:
        exec(compile(source, "<cell>", "exec"), vars(module))
        return vars(module)

    return run


CELL = '''
import torch, capbench
SHIFT = {shift}
def scores(items, W):
    return items @ W @ items.mT - {offset}
class Own(capbench.Architecture):
    """One matrix."""
    name = "own_cell"
    scale: float = 0.5
    def build(self, signature):
        return Module(signature.d_item, self.scale)
class Module(torch.nn.Module):
    def __init__(self, d, scale):
        super().__init__()
        self.W = torch.nn.Parameter(scale * torch.randn(d, d))
    def forward(self, items):
        return scores(items, self.W) + SHIFT
'''


def test_an_instance_of_a_class_in_a_cell_is_measured_with_its_fields(session, own_store) -> None:
    own = session(CELL.format(shift=0.5, offset=1))["Own"]
    run = cb.run(**{**QUICK, "arch": own(scale=0.25)})
    assert run.result.architecture.params == {"scale": 0.25}
    assert run.result.architecture.plugin.startswith("session ")
    assert cb.run(**{**QUICK, "arch": own(scale=0.25)}).result.timing.trials_trained == 0


@pytest.mark.parametrize("changed", [{"shift": 0.75, "offset": 1}, {"shift": 0.5, "offset": 2}])
def test_other_code_in_a_cell_is_another_architecture(changed, session) -> None:
    """Also where only a constant, or a function that a module uses, has changed."""
    before = code_hash(session(CELL.format(shift=0.5, offset=1))["Own"])
    assert code_hash(session(CELL.format(shift=0.5, offset=1))["Own"]) == before
    assert code_hash(session(CELL.format(**changed))["Own"]) != before


def test_a_class_may_not_take_the_name_of_another_plugin_and_needs_one(session) -> None:
    own = session(CELL.format(shift=0, offset=1))["Own"]
    with pytest.raises(cb.CapbenchError, match="'mha' is the name of another plugin of capbench; choose another"):
        cb.run(**{**QUICK, "arch": type("Taken", (own,), {"name": "mha", "__module__": own.__module__})})


def test_a_sweep_compares_a_class_with_a_name_and_is_fitted(session, untrained, tmp_path) -> None:
    own = session(CELL.format(shift=0, offset=1))["Own"]
    common = {"task": "rgr", "preset": "smoke", "at": 3, "seeds": 2, "learning_rates": (0.4,)}
    study = cb.sweep(arch=["mha", own], grid={"task.n_items": [12, 16, 20, 24]}, tags=["t"], **common)
    assert len(study.runs) == 8
    assert [each.architecture for each in study.differences] == ["own_cell"] * 4
    assert "own_cell − mha" in study.table()
    assert "own_cell" in study._repr_html_()
    study.plot(tmp_path / "sweep.svg")
    assert "own_cell" in (tmp_path / "sweep.svg").read_text()
    assert len(cb.runs(tags=["t"], arch="mha")) == 4
    assert len(cb.runs(where=["task.n_items>16", "preset=smoke"])) == 4
    assert len(cb.fit(study.runs[:4], x="task.n_items", y="task.n_items").points) == 4


@pytest.mark.parametrize("part", [torch.nn.Linear, torch.nn.Linear(2, 2), None, ["mha"], cb.Task], ids=str)
def test_what_is_no_architecture_is_refused_with_what_is_asked_for(part) -> None:
    for call in (cb.run, cb.sweep):
        if call is cb.sweep and isinstance(part, list):
            continue
        with pytest.raises(
            BadSetting, match=r"arch takes a name, or a class or an object of capbench\.Architecture, got"
        ):
            call(task="rgr", arch=part)
    with pytest.raises(BadSetting, match="arch takes a name"):
        cb.compare("mha", part, task="rgr")
    with pytest.raises(BadSetting, match=r"task takes a name, or a class or an object of capbench\.Task, got Linear"):
        cb.run(task=torch.nn.Linear, arch="mha")


def test_every_public_name_is_exported() -> None:
    named: dict[str, Any] = {}
    exec("from capbench import *", named)
    assert {"run", "compare", "sweep", "fit", "runs", "load", "Architecture"} <= named.keys()
    assert named.keys() - {"__builtins__"} == set(cb.__all__)


def test_architectures_are_compared_as_the_command_does_it(session, untrained, capbench, tmp_path) -> None:
    own = session(CELL.format(shift=0, offset=1))["Own"]
    settings = {"task.n_items": 16, "mha.n_heads": 2, "mha.d_qk": 4}
    found = cb.compare("mha", own(scale=0.25), "mlp", task="rgr", preset="smoke", settings=settings)
    assert [run.result.architecture.name for run in found.runs] == ["mha", "own_cell", "mlp"]
    assert [run.result.architecture.params.get("n_heads") for run in found.runs] == [2, None, None]
    assert found.runs[1].result.architecture.params == {"scale": 0.25}
    assert {run.result.task.params["n_items"] for run in found.runs} == {16}
    assert found.sentence in found.table()
    assert found.contrast.ratio >= 1
    assert "own_cell" in found._repr_html_()
    assert repr(found) == f"<capbench comparison: {found.sentence}>"
    found.plot(tmp_path / "compared.svg")
    assert "own_cell" in (tmp_path / "compared.svg").read_text()
    words = ("--set", "task.n_items=16", "--set", "mha.n_heads=2", "--set", "mha.d_qk=4", "--preset", "smoke")
    told = capbench("compare", "mha", "mlp", "--task", "rgr", *words)
    assert cb.compare("mha", "mlp", task="rgr", preset="smoke", settings=settings).table() == told.out.rstrip("\n")
    with pytest.raises(BadSetting, match="compare asks how many facts are held; at asks something else"):
        cb.compare("mha", "mlp", task="rgr", at=3)
    with pytest.raises(BadSetting, match="takes two or more architectures, got 1"):
        cb.compare("mha", task="rgr")
