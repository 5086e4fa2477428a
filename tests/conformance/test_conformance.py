"""The conformance kit: built-ins pass it, and for a broken plugin it reports the fault and the fix."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capbench import FACTS, Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task
from capbench.conformance.bound import applicable
from capbench.conformance.check import CheckResult, CheckStatus, run_check
from capbench.conformance.kit import check_target, checks_of
from capbench.conformance.provider import Candidate, Provider, hooks
from capbench.conformance.subject import Subject
from capbench.registry.plugin_file import file_provenance, load_file
from capbench.registry.registry import Provided, Registry, collect, load_registry
from capbench.scaffold.scaffold import Scaffold

REGISTRY = load_registry()
BUILT_IN = {
    f"{hook.removeprefix('capbench_')}-{name}": provided
    for hook in ("capbench_tasks", "capbench_architectures", "capbench_bounds", "capbench_solvers")
    for name, provided in REGISTRY.of_hook(hook).items()
    if provided.provenance.distribution == "capbench"
}

SOUND = Scaffold.named("broken-one", "architecture").files()["broken_one.py"]
RETURN = "return queries @ keys.mT / math.sqrt(self.W_Q.shape[-1]) - self.threshold"
BUILD = "return Scores(signature.d_item, self.d_qk)"
INIT = "self.threshold = nn.Parameter(torch.ones(()))"
D_QK = 'd_qk: int = Field(8, ge=1, le=4096, description="query/key width")'

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a plugin file with a unique name and some of the sound plugin's text replaced."""
    count = 0

    def make(*changes: tuple[str, str], top: str = "") -> Path:
        nonlocal count
        count += 1
        source = SOUND
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        path = tmp_path / f"broken_{abs(hash(request.node.name))}_{count}.py"
        path.write_text(f"{top}\n{source}")
        monkeypatch.setitem(sys.modules, path.stem, None)  # restored after the test
        monkeypatch.delitem(sys.modules, path.stem)
        return path

    return make


def failures_of(path: Path) -> dict[str, CheckResult]:
    """The failed checks of the only class in a file, without the checks of its import."""
    ((_, cls),) = collect(load_file(path))
    subject = Subject(Provided(cls, file_provenance(path)), REGISTRY, compiles=False)
    return failed([run_check(check, subject) for check in checks_of(cls)])


def failed(results: list[CheckResult]) -> dict[str, CheckResult]:
    """What is wrong or slow."""
    return {r.check: r for r in results if r.verdict in (CheckStatus.FAILED, CheckStatus.WARNING)}


def failures_at_import(path: Path, registry: Registry = REGISTRY) -> dict[str, CheckResult]:
    report = check_target(str(path), registry, compiles=False)
    return failed(list(report.sections[0].outcomes))


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_passes_its_checks(name: str) -> None:
    subject = Subject(BUILT_IN[name], REGISTRY, compiles=False)
    assert failed([run_check(check, subject) for check in checks_of(subject.cls)]) == {}


def test_the_sound_plugin_that_the_broken_ones_derive_from_passes(write: Write) -> None:
    assert failures_of(write()) == {}


@pytest.mark.parametrize(
    ("change", "check", "seen", "fix"),
    [
        pytest.param((RETURN, "return (items @ self.W_Q @ (items @ self.W_K).mT - self.threshold)[:, :-1]"),
                     "shapes", "(96, 95)", "make forward return the outputs of Relation", id="wrong shape"),
        pytest.param((BUILD, f"torch.manual_seed(0)\n        {BUILD}"),
                     "no_global_randomness", "torch was seeded globally", "remove the seed", id="global seed"),
        pytest.param((INIT, f"{INIT}\n        self.scale = torch.ones(d_item)"),
                     "keeps_to_the_device", "meta", "register_buffer", id="CPU constant"),
        pytest.param((RETURN, f"queries = queries if queries.sum() > 0 else -queries\n        {RETURN}"),
                     "batches_by_vmap", "falls back to a loop", "use torch.where", id="data-dependent branch"),
        pytest.param((RETURN, f"{RETURN} + torch.sqrt((self.threshold - 1).square())"),
                     "finite_gradients", "gradient of threshold", "clamp(min=", id="NaN gradient"),
        pytest.param((D_QK, D_QK + '\n    sizes: list[int] = Field([1], description="more widths")'),
                     "immutable", "sizes is a mutable default", "use a tuple", id="mutable default"),
        pytest.param(("d_qk: int) -> None", "d_qk: int, cache: dict = {}) -> None"),
                     "immutable", "Scores.__init__(cache={})", "use cache=None", id="mutable default argument"),
        pytest.param((RETURN, f'print("forward")\n        {RETURN}'),
                     "quiet", "it prints 'forward", "remove the print", id="prints"),
        pytest.param(('"""The query-key product of one attention head: an edge where it exceeds a threshold."""', ""),
                     "documented", "none", "say in one sentence", id="no docstring"),
        pytest.param(("raise UnsupportedSignature(", "raise ValueError("),
                     "builds", "ValueError", "raise UnsupportedSignature", id="another error"),
        pytest.param((INIT, f"{INIT}\n        self.idle = nn.Parameter(torch.ones(3))"),
                     "finite_gradients", "idle does not affect the output", "leave idle out", id="unused parameter"),
        pytest.param((RETURN, f"{RETURN} + torch.rand(())"),
                     "deterministic", "two calls of forward differ", "remove dropout and noise", id="noise"),
    ],
)  # fmt: skip
def test_a_broken_plugin_gets_the_right_diagnosis(
    write: Write, change: tuple[str, str], check: str, seen: str, fix: str
) -> None:
    use_constant = ("items @ self.W_Q, items", "items @ self.W_Q, (items * self.scale)")
    path = write(change, use_constant) if "self.scale" in change[1] else write(change)
    found = failures_of(path)
    assert check in found
    assert seen in found[check].seen
    assert fix in found[check].fix
    others = (
        {"no_global_randomness", "independent_of_other_models", "batches_by_vmap"} if "rand(" in change[1] else set()
    )
    assert set(found) - {check} <= others, "one fault, one diagnosis"


def test_a_loop_over_models_is_allowed_and_a_warning(write: Write, capbench) -> None:
    path = write((RETURN, f"queries = queries if queries.sum() > 0 else -queries\n        {RETURN}"))
    done = capbench("check", str(path), "--no-compile")
    assert done.code == 0, done.out
    assert "  warning  batches_by_vmap" in done.out
    assert "fix       do not branch on tensor values" in done.out
    assert "0 failed" in done.out
    assert done.out.rstrip().endswith("1 warning")


def test_a_taken_name_is_reported_with_its_provider(write: Write) -> None:
    found = failures_at_import(write(('"broken_one"', '"mha"')))
    assert list(found) == ["names"]
    assert "architecture 'mha' is provided by capbench" in found["names"].seen
    assert "change name = 'mha'" in found["names"].fix


def test_the_fix_for_a_missing_hook_is_its_code(write: Write) -> None:
    path = write(("@hookimpl\n", ""))
    result = run_check(hooks, Candidate(Provider(path.stem, file=path), REGISTRY))
    assert "none of the hooks" in result.seen
    assert "@hookimpl def capbench_architectures(): return [BrokenOne]" in result.fix


def test_the_fix_for_a_misspelt_hook_is_the_right_name(write: Write) -> None:
    path = write(("def capbench_architectures", "def capbench_architecture"))
    result = run_check(hooks, Candidate(Provider(path.stem, file=path), REGISTRY))
    assert result.fix == "rename capbench_architecture to capbench_architectures"


def test_a_wrong_entry_point_is_reported_with_the_line_to_change(distribution, capbench) -> None:
    distribution("broken-one", SOUND, "[capbench]\nbroken_one = brokn_one\n")
    done = capbench("check", "broken-one", "--json")
    assert done.code == 1, done.err
    (section,) = json.loads(done.out)["sections"]
    found = {result["check"]: result for result in section["outcomes"] if result["verdict"] == "failed"}
    assert list(found) == ["entry_point"]
    assert found["entry_point"]["seen"] == "no module 'brokn_one'"
    assert "[project.entry-points.capbench] of pyproject.toml" in found["entry_point"]["fix"]


def test_entry_points_in_another_group_are_reported(distribution, capbench) -> None:
    distribution("broken-one", SOUND, "[capbench.plugins]\nbroken_one = broken_one\n")
    done = capbench("check", "broken-one")
    assert done.code == 1
    assert "entry points in capbench.plugins" in done.out
    assert '[project.entry-points.capbench] broken_one = "broken_one"' in done.out


def test_an_import_that_crashes_is_reported_with_its_line(write: Write) -> None:
    found = failures_at_import(write(top="import math\nmath.sqrt(-1)"))
    assert list(found) == ["importable"]
    assert "ValueError" in found["importable"].seen
    assert ":2)" in found["importable"].seen
    assert "do nothing at import that can fail" in found["importable"].fix


def test_an_import_that_is_slow_prints_and_seeds_fails_all_three_checks(write: Write) -> None:
    found = failures_at_import(
        write(top="import time\ntime.sleep(2.2)\nprint('hello')\nimport torch\ntorch.manual_seed(1)")
    )
    assert set(found) == {"imported_quickly", "imported_quietly", "imported_without_side_effects"}
    assert "do no work at import" in found["imported_quickly"].fix
    assert "it prints 'hello'" in found["imported_quietly"].seen
    assert "torch was seeded globally" in found["imported_without_side_effects"].seen


def test_an_unknown_target_exits_with_code_2(capbench) -> None:
    done = capbench("check", "mhaa")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'mha'?" in done.err
    assert capbench("check", "./nowhere.py").code == 2


def test_the_report_lists_every_check_and_counts_them(capbench) -> None:
    done = capbench("check", "bits.per_parameter")
    assert done.code == 0, done.out
    assert "bound bits.per_parameter, version 1" in done.out
    assert "  passed  monotone_in_load" in done.out
    assert re.search(r"\n\n\d+ passed, 0 failed, \d+ not applicable\n$", done.out)


KIT_TEST = """
from capbench.testing import Conformance
from {module} import BrokenOne

class TestSound(Conformance):
    plugin = BrokenOne

class Talker(BrokenOne):
    "It prints."
    def build(self, signature):
        print("building")
        return super().build(signature)

class TestTalker(Conformance):
    plugin = Talker
"""


def test_the_kit_is_a_pytest_class_with_one_test_per_rule(write: Write) -> None:
    path = write()
    test = path.with_name("test_kit.py")
    test.write_text(KIT_TEST.format(module=path.stem))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "no:cacheprovider", str(test)],
        cwd=path.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "TestTalker::test_quiet" in done.stdout
    assert "fix       remove the print" in done.stdout
    assert "1 failed" in done.stdout
    assert "none of its modules defines forward_grid" in done.stdout


def test_pytest_is_not_needed_to_import_the_kit() -> None:
    code = "import sys; sys.modules['pytest'] = None; import capbench.testing"
    subprocess.run([sys.executable, "-c", code], check=True)


class Renamed(REGISTRY.tasks["triples"].cls):  # type: ignore[misc]
    """A task that comes with a bound."""

    name = "renamed"


class OneOfRenamed(Bound):
    """A bound on no built-in task."""

    name = "renamed.one"
    kind = Kind.LOWER
    statement = "one fact can be held"
    formula = "N >= 1"
    citation = "none"
    pedigree = Pedigree.DERIVED

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        if not isinstance(task, Renamed):
            raise NotApplicable("it applies to renamed")
        return BoundValue(1.0, FACTS)


@pytest.mark.parametrize(("offered", "verdict"), [((), CheckStatus.FAILED), ((Renamed,), CheckStatus.PASSED)])
def test_a_bound_is_tried_on_the_tasks_of_its_own_module(offered: tuple[type[Task], ...], verdict: CheckStatus) -> None:
    provided = Provided(OneOfRenamed, REGISTRY.tasks["triples"].provenance)
    assert run_check(applicable, Subject(provided, REGISTRY, offered=offered)).verdict is verdict
