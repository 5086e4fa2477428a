"""The local executor: one lane group after the other in this process."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

import torch
from torch import Tensor

from capbench.engine.construct import construct_group
from capbench.engine.devices import keep_memory
from capbench.engine.gradients import CompileMode
from capbench.engine.lanes import LaneGroup, TrialSpec
from capbench.engine.train import Cost, OnProgress, OnTrial, finished, train_group
from capbench.errors import UserError
from capbench.results import Trial, TrialStatus
from capbench.solver import GradientSolver


class LocalExecutor:
    """Runs groups on one device."""

    def __init__(self, device: torch.device, compile_mode: CompileMode = "off") -> None:
        self._device = device
        self._compile_mode = compile_mode
        if device.type == "cpu":
            keep_memory()

    def run(self, groups: Iterable[LaneGroup], on_trial: OnTrial, on_progress: OnProgress) -> Cost:
        """Runs each group to its end."""
        cost = Cost()
        for group in groups:
            cost.add(self._run_group(group, on_trial, on_progress))
        return cost

    def _run_group(self, group: LaneGroup, on_trial: OnTrial, on_progress: OnProgress) -> Cost:
        """Trains a group; where that fails, its halves, so that only the trials at fault are lost."""
        ended: set[str] = set()

        def report(trial: Trial, weights: dict[str, Tensor]) -> None:
            ended.add(trial.key)
            on_trial(trial, weights)

        try:
            if isinstance(group.pair.solver.plugin, GradientSolver):
                return train_group(group, self._device, report, on_progress, self._compile_mode)
            return construct_group(group, self._device, report, on_progress)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the plugin border: any fault of a plugin costs its trial only
            left = tuple(trial for trial in group.trials if group.pair.key(trial) not in ended)
            if len(left) == 1:
                on_trial(_failed(group, left[0], error), {})
            cost = Cost()
            for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                if half and len(left) > 1:
                    cost.add(self._run_group(LaneGroup(group.pair, group.slots, half), on_trial, on_progress))
            return cost


def _failed(group: LaneGroup, trial: TrialSpec, error: Exception) -> Trial:
    """The record of a trial that raised."""
    record = finished(group.pair, trial, TrialStatus.FAILED, 0, {}, {})
    return record.model_copy(update={"error": "".join(traceback.format_exception(error))[-4000:]})
