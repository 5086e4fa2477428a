"""Training protocols by name: how batches, learning rates and steps are chosen, by capbench and by the papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capbench.engine.trials import Sampling
from capbench.errors import UnknownName


@dataclass(frozen=True)
class TrainingProtocol:
    """A way of training; what it leaves empty is capbench's default."""

    name: str
    meaning: str
    sampling: Sampling | None = None
    learning_rates: tuple[float, ...] = ()
    steps: int | None = None
    solver_fields: Mapping[str, str | float] = field(default_factory=dict)


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        TrainingProtocol(
            "capbench", "every fact in every step; several learning rates; stops when the criterion is met"
        ),
        TrainingProtocol(
            "dana2025",
            "Dana et al. 2025, arXiv 2411.10115 [code]: 16,384 draws with replacement, batches of 256, 64 epochs, "
            "Adam from 1e-2 linearly to 5e-4, accuracy over the last 100 training batches",
            Sampling(batch=256, n_draws=16_384, scored_batches=100),
            learning_rates=(0.01,),
            steps=64 * 16_384 // 256,
            solver_fields={"decay": "linear", "final_share": 0.05},
        ),
        TrainingProtocol(
            "mahdavi2024",
            "Mahdavi et al. 2024, arXiv 2306.02010 [code]: batches of 256, Adam at 1e-3 with 5 % warm-up "
            "and cosine decay, 50,000 steps",
            Sampling(batch=256),
            learning_rates=(0.001,),
            steps=50_000,
            solver_fields={"warmup": 0.05},
        ),
    )
}


def protocol_named(name: str) -> TrainingProtocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise UnknownName.among("protocol", name, PROTOCOLS, ", ".join(PROTOCOLS))
    return PROTOCOLS[name]
