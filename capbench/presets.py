"""Presets: how much a run may spend."""

from __future__ import annotations

from dataclasses import dataclass

from capbench.errors import UnknownName


@dataclass(frozen=True)
class Preset:
    """Sizes of a search. Plugins may change their fields under a preset's name as well."""

    name: str
    meaning: str
    step_share: float
    seeds: int
    first_points: int
    first_seeds: int
    batch: int
    budget: int


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("smoke", "seconds, for tests: small tasks, few seeds, wide intervals", 0.2, 3, 5, 1, 6, 24),
        Preset(
            "quick",
            "a rough answer for many pairs: few trials at a time, close to the transition",
            1.0,
            16,
            8,
            1,
            8,
            32,
        ),
        Preset("standard", "an honest answer on a two-core laptop in about a minute", 1.0, 24, 8, 2, 32, 144),
        Preset("paper", "the papers' sizes, for CUDA or a cluster", 3.0, 50, 12, 4, 48, 600),
    )
}

CONSTRUCTION = Preset("construction", "explicit weights next to a trained capacity", 1.0, 4, 6, 1, 8, 32)
"""What is spent on explicit weights beside a training run: they vary little, so a few seeds do."""


def preset_named(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise UnknownName.among("preset", name, PRESETS, ", ".join(PRESETS))
    return PRESETS[name]
