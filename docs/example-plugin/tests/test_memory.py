"""Both plugins keep capbench's contract, and the task asks what its docstring says."""

import torch

from capbench.testing import Conformance
from capbench_memory.hopfield import Hopfield
from capbench_memory.profiles import Profiles


class TestHopfield(Conformance):
    plugin = Hopfield


class TestProfiles(Conformance):
    plugin = Profiles


def test_people_share_names_but_not_pairs_of_names() -> None:
    task = Profiles(n_names=4, n_people=16, n_attributes=3)
    tokens = task.problem(48, 48, torch.Generator().manual_seed(0)).inputs[0]
    assert len(tokens[:, 0].unique()) == 4
    assert len(tokens[:, :2].unique(dim=0)) == 16
    assert len(tokens.unique(dim=0)) == 48


def test_with_one_slot_per_row_of_the_grid_the_facts_are_in_grid_order() -> None:
    task = Profiles(n_names=4, n_people=5, n_attributes=3)
    few, all_ = (task.problem(7, slots, torch.Generator().manual_seed(0)) for slots in (8, 48))
    assert torch.equal(all_.inputs[0], task.signature.grid())
    facts = [
        {
            (*tokens, int(target))
            for tokens, target in zip(p.inputs[0][p.mask > 0].tolist(), p.targets[p.mask > 0], strict=True)
        }
        for p in (few, all_)
    ]
    assert facts[0] == facts[1]
    assert len(facts[0]) == 7
