"""Times a loop over the trials of a result document: python plain_loop.py DOCUMENT SECONDS SEED.

It says "ready", waits for a line, trains trials one by one on one thread for about so many seconds, and prints what
they took. Trials are drawn in proportion to their steps, so the mean of their times per step is that of all steps.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from cases import PlainLoop

from capbench.documents.result import Result, Trial
from capbench.engine.train import CHECK_EVERY
from capbench.engine.trials import Setup, TrialSpec
from capbench.measure.options import parse_command
from capbench.measure.request import build_request
from capbench.measure.session import setup_of
from capbench.registry.registry import load_registry

WARM_UP_STEPS = 50
MOST_DRAWN = 100_000


def train_plainly(setup: Setup, trial: Trial, steps: int) -> float:
    """Trains one model for so many steps, evaluating it as often as the engine does; returns the seconds."""
    started = time.perf_counter()
    loop = PlainLoop(setup, TrialSpec(trial.load, trial.seed, trial.learning_rate))
    for step in range(1, steps + 1):
        loop.step()
        if step % CHECK_EVERY == 0 or step == steps:
            loop.evaluate()
    return time.perf_counter() - started


def sample(setup: Setup, trials: list[Trial], seconds: float) -> dict[str, float]:
    """Trains trials until the time is over; the last one to its end."""
    n_steps, times, started = 0, [], time.perf_counter()
    for trial in trials:
        times.append(train_plainly(setup, trial, trial.steps) / trial.steps)
        n_steps += trial.steps
        if time.perf_counter() - started >= seconds:
            break
    return {"seconds_per_step": statistics.fmean(times), "trials": len(times), "steps": n_steps}


def main(document: Path, seconds: float, seed: int) -> None:
    torch.set_num_threads(1)
    result = Result.model_validate_json(document.read_text(encoding="utf-8"))
    setup = setup_of(build_request(parse_command(result.command), load_registry()), 1)
    weights = [trial.steps for trial in result.trials]  # 0 for a trial that failed
    drawn = random.Random(seed).choices(result.trials, weights, k=MOST_DRAWN)
    train_plainly(setup, drawn[0], WARM_UP_STEPS)
    print("ready", flush=True)
    if sys.stdin.readline():
        print(json.dumps(sample(setup, drawn, seconds)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
