"""The machine that trains: versions, device and threads of this process, as the result document records them."""

from __future__ import annotations

import platform

import torch

from capbench import __version__
from capbench.engine.devices import device_name
from capbench.engine.lanes import ENGINE_VERSION
from capbench.results import Machine


def this_machine(device: torch.device) -> Machine:
    """What decides, beside a trial's key, how far its numbers come out equal."""
    return Machine(
        capbench=__version__,
        engine=ENGINE_VERSION,
        python=platform.python_version(),
        torch=torch.__version__,
        device=str(device),
        device_name=device_name(device),
        threads=torch.get_num_threads(),
        platform=platform.platform(),
    )
