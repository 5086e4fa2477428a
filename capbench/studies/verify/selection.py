"""Whether the selection of a document is one that settling can have left: nothing was picked out of it afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from capbench.documents.result import Protocol, Result, Selection, Trial
from capbench.errors import BadDocument
from capbench.measure.options import parse_command
from capbench.measure.presets import PRESETS
from capbench.measure.session import SELECTION_SEED
from capbench.measure.settle import SETTLE_VERSION, capacity_by_steps, is_settled


def check_selection(selection: Selection, result: Result) -> Iterator[str]:
    """Findings about the version, seeds and steps of a selection."""
    try:
        first_seed = SELECTION_SEED + parse_command(result.command).first_seed
    except BadDocument as error:
        yield str(error)
        return
    stated, own = (selection.version, selection.first_seed), (SETTLE_VERSION, first_seed)
    if stated != own:
        yield f"selection: version and first seed are stated as {stated}, this capbench settles with {own}"
        return
    yield from _gaps(selection.trials, selection.first_seed)
    yield from _wrong_steps(selection, result.protocol)


def _gaps(trials: tuple[Trial, ...], first_seed: int) -> Iterator[str]:
    """Findings where seeds were left out: a search takes them in order, so that lucky ones cannot be picked."""
    seeds: dict[tuple[int, int, float], list[int]] = defaultdict(list)
    for trial in trials:
        seeds[trial.limit or 0, trial.at, trial.learning_rate or 0.0].append(trial.seed)
    for (steps, at, rate), found in sorted(seeds.items()):
        if sorted(found) != list(range(first_seed, first_seed + len(found))):
            yield f"selection.trials: at load {at}, rate {rate:g} and {steps:,} steps, the seeds are not the first ones"


def _wrong_steps(selection: Selection, protocol: Protocol) -> Iterator[str]:
    """Findings where a number of steps was left out, or the doubling ended before it was settled or at its limit."""
    steps = sorted({trial.limit or 0 for trial in selection.trials})
    if any(after != 2 * before for before, after in pairwise(steps)):
        yield f"selection.trials: their limits of steps double each time, got {steps}"
        return
    preset = PRESETS.get(protocol.preset)
    if preset is None or 2 * steps[-1] > preset.most_steps(steps[0]):
        return
    if not is_settled(capacity_by_steps(selection, protocol), selection.share):
        yield f"selection.trials: settling does not end at {steps[-1]:,} steps, where the capacity is not settled"
