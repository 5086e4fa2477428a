"""The place of a run in a suite: which one it fills, and whether a document fills the one that it names."""

from __future__ import annotations

from capbench.document import command
from capbench.errors import BadSetting, CannotRepeat
from capbench.plan import Entry, make_plan
from capbench.registry import Registry
from capbench.results import Result, SuiteRecord
from capbench.suite import Suite, load_suite, suite_names


def stated_suite(place: SuiteRecord, file: str | None) -> Suite:
    """The suite that a document names, from a file or from those that come with capbench."""
    if file is None and place.name not in suite_names():
        raise CannotRepeat(f"the suite {place.name!r} does not come with capbench; name its file: --suite FILE.toml")
    suite = load_suite(file or place.name)
    if (suite.name, suite.version) != (place.name, place.version):
        raise CannotRepeat(
            f"the document is of suite {place.name} {place.version}, here is {suite.name} {suite.version}; "
            "install the capbench that has it, or name its file: --suite FILE.toml"
        )
    return suite


def check_place(result: Result, suite: Suite, registry: Registry) -> list[str]:
    """Where a document says that a suite asked for it, and the suite asks for another run there, or for none."""
    assert result.suite is not None
    asked = {entry.place.tier: command(entry.request) for entry in _entries(result, suite, registry)}
    if result.suite.tier not in asked:
        return [f"suite.tier: {suite.name} {suite.version} has no such pair at {result.suite.tier}, only at {[*asked]}"]
    if asked[result.suite.tier] != result.command:
        return [f"suite: {suite.name} {suite.version} asks for another run there: {asked[result.suite.tier]}"]
    return []


def find_place(result: Result, suite: Suite, registry: Registry) -> SuiteRecord:
    """The place of a suite that a run fills, because it is the run that the suite asks for there."""
    entries = _entries(result, suite, registry)
    for entry in entries:
        if command(entry.request) == result.command:
            return entry.place
    asked = "; ".join(command(entry.request) for entry in entries) or "none of this task and architecture"
    raise BadSetting(f"the run {result.run_id} is none that the suite {suite.name} asks for; those are: {asked}")


def _entries(result: Result, suite: Suite, registry: Registry) -> tuple[Entry, ...]:
    """What a suite asks for of the document's task and architecture."""
    is_named = not suite.tasks or result.task.name in suite.tasks
    if not is_named or (suite.architectures and result.architecture.name not in suite.architectures):
        return ()
    return make_plan(suite, registry, [result.task.name], [result.architecture.name]).entries
