"""Trials: fields that were added later leave the seeds of earlier results as they were."""

from __future__ import annotations

from capbench.engine.trials import Setup, Training, TrialSpec, _seed
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure

TRIAL = TrialSpec(20, 3, 0.01)


def make_setup(length: int, n_layers: int) -> Setup:
    registry = load_registry()
    task = configure(registry.task("bigrams"), "smoke", {"length": length})
    transformer = configure(registry.architecture("transformer"), "smoke", {"n_layers": n_layers})
    return Setup(
        task, transformer, configure(registry.solver("adam"), "smoke", {}), Training(task.plugin.criterion, 10)
    )


def test_the_data_seeds_of_pairs_do_not_know_the_later_fields() -> None:
    usual, other = make_setup(2, 1), make_setup(3, 2)
    bigrams = usual.task.plugin
    facts = bigrams.model_dump_json(exclude={"length", *bigrams.scoring_fields})
    assert usual.data_seed(TRIAL) == _seed("data", "bigrams", "1", facts, "20", "3")
    assert other.init_seed(TRIAL) != usual.init_seed(TRIAL)
    assert other.data_seed(TRIAL) != usual.data_seed(TRIAL)
    assert other.key(TRIAL) != usual.key(TRIAL)
