"""Presets: how many steps, seeds and trials a run uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from capbench.errors import UnknownName


@dataclass(frozen=True)
class Preset:
    """The size of a search. A plugin may declare other defaults of its fields under a preset's name."""

    name: str
    meaning: str
    step_share: float
    """The task's number of steps is multiplied by this."""
    seeds: int
    """Most seeds at any one point."""
    first_points: int
    first_seeds: int
    """Points of the first round, and seeds at each."""
    batch: int
    """Trials per later round."""
    budget: int
    """Most trials of a search."""
    settle: float | None = 0.05
    """The share to which suites settle their capacities; None: they do not."""
    doublings: int = 4
    """How often --settle may double the steps."""
    most_shapes: int | None = None
    """How many of an architecture's shapes --params compares, the most ordinary first; None: all."""

    def most_steps(self, steps: int) -> int:
        """The most steps that --settle may come to."""
        return int(steps * 2**self.doublings)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "smoke",
            "seconds, for tests: small tasks, few seeds, wide intervals",
            step_share=0.2,
            seeds=3,
            first_points=5,
            first_seeds=1,
            batch=6,
            budget=24,
            settle=None,
            most_shapes=4,
        ),
        Preset(
            "quick",
            "few trials, for comparing many pairs",
            step_share=1.0,
            seeds=16,
            first_points=8,
            first_seeds=1,
            batch=8,
            budget=32,
            doublings=3,
        ),
        Preset(
            "standard",
            "the default; about a minute on a two-core laptop",
            step_share=1.0,
            seeds=24,
            first_points=8,
            first_seeds=2,
            batch=32,
            budget=144,
        ),
        Preset(
            "paper",
            "the papers' sizes, for CUDA or a cluster",
            step_share=3.0,
            seeds=50,
            first_points=12,
            first_seeds=4,
            batch=48,
            budget=600,
        ),
    )
}

RecipePreset = Literal["smoke", "standard", "paper"]
"""The presets under which a recipe of a paper can be reproduced."""
RECIPE_PRESETS: tuple[RecipePreset, ...] = get_args(RecipePreset)

CONSTRUCTION = Preset(
    "construction",
    "explicit weights next to a trained capacity",
    step_share=1.0,
    seeds=4,
    first_points=6,
    first_seeds=1,
    batch=8,
    budget=32,
)
"""For the search with explicit weights beside a trained capacity: they vary little, so a few seeds suffice."""


def preset_named(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise UnknownName.among("preset", name, PRESETS, ", ".join(PRESETS))
    return PRESETS[name]
