"""Synthetic records for tests: valid documents whose summaries follow from their trials."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from capbench.contract.task import Criterion
from capbench.documents.result import (
    ArchitectureRef,
    BoundRecord,
    Capacity,
    CapacityAtSteps,
    Environment,
    InstalledPlugin,
    PluginRef,
    Protocol,
    Result,
    ShapeTried,
    SuiteCell,
    Timing,
    Trial,
    TrialStatus,
)
from capbench.measure.estimate.summary import summarise

LOADS = (8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)


@dataclass(frozen=True)
class SyntheticRecord:
    """The properties of a synthetic record."""

    task: str = "rgr"
    architecture: str = "mha"
    capacity: float = 50.0
    tier: int | None = 1024
    seeds: int = 4
    suite: str = "standard"
    suite_version: int = 1
    task_version: int = 1
    threshold: float = 0.99
    noise: float = 0.0
    draw: int = 0
    scale: int = 1
    """Factor on all loads."""
    settled: bool | None = None
    family: str = ""
    steps: int = 100

    def result(self) -> Result:
        """The result document."""
        protocol = self._protocol()
        trials = tuple(self._trial(load, seed, protocol) for load in self._loads for seed in range(self.seeds))
        summary = summarise(trials, protocol)
        bits, n_parameters = summary.metrics["bits"], (self.tier or 1000) + 7
        return Result(
            run_id=f"{random.Random(repr(self)).getrandbits(48):012x}",
            command=f"capbench run --task {self.task} --arch {self.architecture}",
            suite=self._suite(),
            task=_ref(self.task, self.task_version),
            architecture=self._architecture(n_parameters),
            solver=_ref("adam", 1),
            protocol=protocol,
            n_parameters=n_parameters,
            capacity=self._capacity(summary.capacity),
            bits=bits,
            bits_per_parameter=bits / n_parameters,
            metrics=summary.metrics,
            data=summary.data,
            rates=summary.rates,
            bounds=(
                _bound("lower", 20.0 * self.scale, summary.capacity.estimate),
                _bound("upper", 300.0 * self.scale, summary.capacity.estimate),
            ),
            trials=trials,
            environment=_environment(),
            timing=Timing(
                wall_seconds=61.5,
                train_seconds=60.0,
                compile_seconds=0.0,
                lane_steps=1000,
                trials_trained=len(trials),
                trials_reused=0,
            ),
        )

    @property
    def _loads(self) -> tuple[int, ...]:
        return tuple(self.scale * load for load in LOADS)

    def _suite(self) -> SuiteCell | None:
        settle = None if self.settled is None else 0.05
        return (
            SuiteCell(name=self.suite, version=self.suite_version, tier=self.tier, settle=settle) if self.tier else None
        )

    def _architecture(self, n_parameters: int) -> ArchitectureRef:
        reference: ArchitectureRef = _ref(self.architecture, 1, ArchitectureRef)
        shapes = tuple(
            ShapeTried(params={"d_model": d, "n_heads": 8 // d}, n_parameters=n_parameters, estimate=d, trials=4)
            for d in (8, 4)
        )
        tried = () if self.settled is None else shapes
        return reference.model_copy(update={"family": self.family, "shapes_tried": tried})

    def _capacity(self, capacity: Capacity) -> Capacity:
        """The capacity with the steps that it was settled over, where that is asked."""
        if self.settled is None:
            return capacity
        drift = 0.02 if self.settled else 0.2
        by_steps = tuple(
            CapacityAtSteps(steps=self.steps * 2**i, estimate=capacity.estimate * share, ci_low=None, ci_high=None)
            for i, share in enumerate((1 - drift, 1.0))
        )
        return capacity.model_copy(update={"settled": self.settled, "drift": drift, "by_steps": by_steps})

    def _protocol(self) -> Protocol:
        return Protocol(
            preset="standard",
            criterion=Criterion(metric="f1", threshold=self.threshold),
            seeds=self.seeds,
            learning_rates=(0.1,),
            steps=self.steps,
            dtype="float32",
            ci_width=0.05,
            mode="capacity",
            limits=(1, 256 * self.scale),
        )

    def _trial(self, load: int, seed: int, protocol: Protocol) -> Trial:
        rng = random.Random(f"{self.architecture} {self.draw} {load} {seed}")
        held = load <= self.capacity * (1 + self.noise * (rng.random() - 0.5))
        metric = 1.0 if held else max(0.0, min(0.98, self.capacity / load))
        return Trial(
            key=f"{rng.getrandbits(128):032x}",
            load=load,
            seed=seed,
            learning_rate=0.1,
            status=TrialStatus.HELD if held else TrialStatus.NOT_HELD,
            steps=self._steps(held, rng),
            metrics={"f1": metric, "bits": 8.0 * min(load, self.capacity)},
        )

    def _steps(self, held: bool, rng: random.Random) -> int:
        """All steps, or fewer for a trial that holds in a suite that settles."""
        return int(self.steps * (0.5 + rng.random() / 2)) if held and self.settled is not None else self.steps


def write_record(folder: Path, record: SyntheticRecord) -> Path:
    """Writes a record to the path that a suite would choose."""
    result = record.result()
    path = folder / record.suite / record.task / f"{record.architecture}-{result.n_parameters}-{result.run_id}.json"
    return write_result(path, result)


def write_result(path: Path, result: Result) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result.model_dump(mode="json"), indent=1), encoding="utf-8")
    return path


def _ref(name: str, version: int, kind: type[PluginRef] = PluginRef) -> Any:
    return kind(name=name, version=version, params={"d_model": 8}, plugin="capbench 0.1.0", code_hash="a" * 16)


def _bound(kind: str, value: float, measured: float) -> BoundRecord:
    return BoundRecord.model_validate(
        {
            "id": f"made.{kind}",
            "kind": kind,
            "quantity": "facts",
            "value": value,
            "measured": measured,
            "ratio": measured / value,
            "pedigree": "derived",
            "citation": "none, synthetic",
            "holds": True,
        }
    )


def _environment() -> Environment:
    plugin = InstalledPlugin(entry_point="mha", distribution="capbench", version="0.1.0", module="capbench_plugins.mha")
    return Environment(
        capbench="0.1.0",
        python="3.11.7",
        torch="2.6.0",
        device="cpu",
        device_name="x86_64",
        threads=1,
        platform="Linux",
        plugins=(plugin,),
    )


LADDER = (256, 512, 1024, 2048, 4096)
"""Tiers of the standard suite: five sizes, a factor of two apart."""
COMPARED = {
    "attention": ("mha", "gqa", "headsplit", "aot", "linear_attention", "transformer"),
    "recurrence": ("deltanet", "gla"),
    "mlp": ("mlp", "gated_mlp", "moe"),
    "memory": ("linear_memory",),
}


def write_ladders(
    folder: Path,
    tasks: tuple[str, ...] = ("bigrams", "rgr", "sequences", "triples"),
    tiers: tuple[int, ...] = LADDER,
    seeds: int = 4,
) -> None:
    """Writes records like those of the standard suite: a dozen architectures at several sizes, some not settled."""
    for task, (family, names), tier in product(tasks, COMPARED.items(), tiers):
        for name in names:
            write_record(folder, _ladder_record(task, family, name, tier, seeds))


def _ladder_record(task: str, family: str, name: str, tier: int, seeds: int) -> SyntheticRecord:
    """A record whose capacity grows with the size, at a rate of its own for each task and architecture."""
    rate, slope = (random.Random(f"{task} {name} {part}").random() for part in ("rate", "slope"))
    share = (0.3 + 1.7 * rate) / 8 * (tier / 1024) ** (0.3 * slope - 0.15)
    return SyntheticRecord(
        task=task,
        architecture=name,
        capacity=share * tier,
        tier=tier,
        seeds=seeds,
        suite_version=4,
        noise=0.5,
        scale=max(1, tier // 512),
        settled=random.Random(f"{task} {name} {tier}").random() > 0.1,
        family=family,
        steps=250 * 2 ** (len(name) % 4),
    )
