"""Cost: seconds of training by phase, and lane-steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Cost:
    """Seconds by phase, and lane-steps. On CUDA a phase that waits for the device includes what was queued before."""

    phases: dict[str, float] = field(default_factory=dict)
    lane_steps: int = 0
    compiled_lane_steps: int = 0
    eager_reasons: set[str] = field(default_factory=set)
    """Why steps that were to be compiled ran eagerly."""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """A scope whose time counts for a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spend(phase, time.perf_counter() - started)

    def spend(self, phase: str, seconds: float) -> None:
        """Counts seconds for a phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def add(self, other: Cost) -> None:
        """Adds another group's cost."""
        for phase, seconds in other.phases.items():
            self.spend(phase, seconds)
        self.lane_steps += other.lane_steps
        self.compiled_lane_steps += other.compiled_lane_steps
        self.eager_reasons |= other.eager_reasons

    def part(self, share: float) -> Cost:
        """A share of the cost."""
        phases = {phase: share * seconds for phase, seconds in self.phases.items()}
        steps, compiled = round(share * self.lane_steps), round(share * self.compiled_lane_steps)
        return Cost(phases, steps, compiled, set(self.eager_reasons))

    @property
    def compile_seconds(self) -> float:
        """Seconds of compiling."""
        return self.phases.get("compile", 0.0)

    @property
    def seconds(self) -> float:
        """Seconds of all phases except compiling."""
        return sum(self.phases.values()) - self.compile_seconds
