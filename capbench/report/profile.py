"""A profile: where the time of a run went, as a person reads it."""

from __future__ import annotations

from capbench.report.text import table
from capbench.results import Timing

MEANINGS = {
    "build": "drawing facts and initial weights, sizing groups",
    "compile": "compiling the training step",
    "steps": "training steps: forward, backward, update",
    "metrics": "scoring all lanes at every look",
    "verdicts": "deciding which lanes end",
    "store": "writing finished trials to disk",
    "construct": "writing weights down from a theorem",
    "planning": "search, fits, bounds, reading the store",
}
BAR = 24


def profile_text(timing: Timing) -> str:
    """Seconds by phase with a bar for the share of each, and what a lane-step cost."""
    whole = sum(timing.phases.values()) or 1.0
    rows = [
        (phase, f"{seconds:.2f}", f"{seconds / whole:.0%}", "█" * round(BAR * seconds / whole), MEANINGS.get(phase, ""))
        for phase, seconds in sorted(timing.phases.items(), key=lambda item: -item[1])
    ]
    parts = [table(rows, ("phase", "seconds", "share", "", "what it is"))]
    if timing.lane_steps:
        each = 1e6 * timing.phases.get("steps", 0.0) / timing.lane_steps
        compiled = timing.compiled_lane_steps / timing.lane_steps
        parts.append(
            f"{timing.lane_steps:,} lane-steps, {each:.1f} µs each in the step itself; {compiled:.0%} compiled"
        )
    return "\n\n".join(parts)
