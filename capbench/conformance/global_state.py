"""State that a whole process shares: the random generators and torch's defaults. A plugin leaves it alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

TORCH_DRAWS = "torch's default generator was drawn from"


@dataclass(frozen=True)
class GlobalState:
    """A snapshot, as one text for each part, keyed by what a change of it means."""

    parts: Mapping[str, str]

    @classmethod
    def now(cls) -> GlobalState:
        """The present state."""
        keys = np.random.get_state(legacy=False)
        return cls(
            {
                "torch was seeded globally": str(torch.initial_seed()),
                TORCH_DRAWS: _digest(torch.default_generator.get_state().numpy().tobytes()),
                "Python's random module was seeded or drawn from": _digest(repr(random.getstate()).encode()),
                "numpy's global generator was seeded or drawn from": _digest(repr(keys).encode()),
                "torch's default dtype was changed": str(torch.get_default_dtype()),
                "torch's default device was changed": str(torch.get_default_device()),
            }
        )

    def changes(self) -> list[str]:
        """What has happened since; a seeding is not told as a drawing as well."""
        now = GlobalState.now().parts
        changed = [meaning for meaning, text in self.parts.items() if now[meaning] != text]
        return changed if len(changed) < 2 else [meaning for meaning in changed if meaning != TORCH_DRAWS]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
