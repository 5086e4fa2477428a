"""The cell of a run in a suite: finding it, and checking the one that a document states."""

from __future__ import annotations

from dataclasses import replace

from capbench.documents.result import Result, SuiteCell
from capbench.errors import BadSetting, CannotRepeat
from capbench.measure.document import command
from capbench.registry.registry import Registry
from capbench.studies.suite import Suite, load_suite, suite_names
from capbench.studies.suite_run import PlannedCell, make_plan


def stated_suite(cell: SuiteCell, file: str | None) -> Suite:
    """The suite that a document names, from a file or from those that come with capbench."""
    if file is None and cell.name not in suite_names():
        raise CannotRepeat(f"the suite {cell.name!r} does not come with capbench; name its file: --suite FILE.toml")
    suite = load_suite(file or cell.name)
    if (suite.name, suite.version) != (cell.name, cell.version):
        raise CannotRepeat(
            f"the document is of suite {cell.name} {cell.version}, here is {suite.name} {suite.version}; "
            "install the capbench that has it, or name its file: --suite FILE.toml"
        )
    return suite


def check_cell(result: Result, suite: Suite, registry: Registry) -> list[str]:
    """Findings if the suite has another run, or none, in the cell that a document states."""
    assert result.suite is not None
    cells = {planned.cell.tier: planned for planned in _cells(result, suite, registry)}
    if result.suite.tier not in cells:
        return [f"suite.tier: {suite.name} {suite.version} has no such pair at {result.suite.tier}, only at {[*cells]}"]
    planned = cells[result.suite.tier]
    commands = _commands(planned, result)
    if result.command not in commands:
        return [f"suite: {suite.name} {suite.version} has another run there: {'; or '.join(commands)}"]
    return _check_settling(result, planned)


def _check_settling(result: Result, planned: PlannedCell) -> list[str]:
    """Findings if a record was settled in another way than the suite asks for; one that was not settled says so."""
    stated, asked = result.suite and result.suite.settle, planned.cell.settle
    if stated != asked:
        return [f"suite.settle: stated {stated}, the suite has {asked}"]
    if result.selection is None or asked is None:
        return []
    protocol, first = planned.request.protocol, min(trial.limit or 0 for trial in result.selection.trials)
    tried = {trial.learning_rate for trial in result.selection.trials if trial.limit == first}
    findings = []
    if result.selection.share > asked:
        findings.append(f"selection.share: stated {result.selection.share:g}, the suite asks for {asked:g}")
    # Where a shape was chosen, settling starts around the rate at which that shape was best.
    starts = planned.request.chooses_shape or tried.issuperset(protocol.learning_rates)
    if first != protocol.steps or not starts:
        findings.append(f"selection.trials: the suite starts with {protocol.steps:,} steps and the rates of its task")
    return findings


def find_cell(result: Result, suite: Suite, registry: Registry) -> SuiteCell:
    """The cell of a suite whose run this is; raises BadSetting if there is none."""
    cells = _cells(result, suite, registry)
    for planned in cells:
        if result.command in _commands(planned, result):
            return planned.cell
    known = "; ".join(each for planned in cells for each in _commands(planned, result))
    raise BadSetting(
        f"the run {result.run_id} is not a run of the suite {suite.name}; those are: "
        f"{known or 'none of this task and architecture'}"
    )


def _commands(planned: PlannedCell, result: Result) -> list[str]:
    """The commands of a cell's run, one for each shape that may turn out to be the best.

    The rate and the steps of a settled result are those that it chose.
    """
    request = planned.request
    if result.selection is not None:
        chosen = {"rates": result.protocol.learning_rates, "steps": result.protocol.steps}
        request = replace(request, options=request.options.replaced(**chosen))
    shapes = request.shapes if request.chooses_shape else (request.architecture,)
    return [command(replace(request, architecture=shape)) for shape in shapes]


def _cells(result: Result, suite: Suite, registry: Registry) -> tuple[PlannedCell, ...]:
    """The cells of a suite with the document's task and architecture."""
    is_named = not suite.tasks or result.task.name in suite.tasks
    if not is_named or (suite.architectures and result.architecture.name not in suite.architectures):
        return ()
    return make_plan(suite, registry, [result.task.name], [result.architecture.name]).cells
