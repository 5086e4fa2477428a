"""The connection to a Ray cluster: made within seconds, or refused in one line."""

from __future__ import annotations

import logging
import os
import socket
import threading
import warnings

import ray

from capbench.errors import ClusterUnavailable
from capbench.executors.target import ADDRESS

PORT_SECONDS = 5.0
"""Timeout for a port to answer at all."""
JOIN_SECONDS = 20.0
"""Timeout for joining a cluster: Ray itself would try for minutes."""
CLIENT_JOIN_SECONDS = 50.0
"""Timeout for joining at ray:// addresses, where the head first starts a process for each client."""

START_SECONDS = 60.0
"""Timeout for starting a cluster of this machine alone."""

NOT_STARTED, JOIN_TRIES = "Initialization failure from server", 3
"""Error of the head when the client server process fails to start, which happens occasionally."""


class LocalRayStarted(UserWarning):
    """No Ray cluster ran on this machine, so that one was started."""


def connect(address: str) -> None:
    """Joins the cluster at an address; a process that is in one already stays there."""
    if ray.is_initialized():
        _check_same(address)
        return
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # as Ray reads it
    _check_port(address)
    seconds = CLIENT_JOIN_SECONDS if address.startswith("ray://") else JOIN_SECONDS
    failure = _try_join(address, seconds)
    if address == "auto" and isinstance(failure, ConnectionError):
        _start_local()
    elif isinstance(failure, TimeoutError):
        raise ClusterUnavailable(
            f"{address} is not a Ray cluster, or did not answer within {seconds:g} s; check --address: "
            "HOST:6379 from a node of the cluster, ray://HOST:10001 from elsewhere"
        )
    elif failure is not None:
        raise ClusterUnavailable(
            f"the Ray cluster at {address} cannot be joined: {failure}; the same Ray and Python must be on both sides"
        ) from failure


def _start_local() -> None:
    """Starts a Ray cluster of this machine alone, which ends with this process, and says so."""
    failure = _try_join("local", START_SECONDS)
    if failure is not None:
        reason = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        raise ClusterUnavailable(
            f"no Ray cluster runs on this machine, and none could be started: {reason}; start one with "
            "`ray start --head`, name one: --address HOST:PORT, or leave --executor ray out"
        ) from failure
    warnings.warn(
        "no Ray cluster runs on this machine: started one that ends with this process; name another: "
        "--address HOST:PORT",
        LocalRayStarted,
        stacklevel=2,
    )


def _try_join(address: str, seconds: float) -> Exception | None:
    """Joins, or starts at the address `local`; returns why that failed: TimeoutError where there was no answer.

    A separate thread can be abandoned, and keeps Ray from replacing signal handlers.
    """
    failures: list[Exception] = []
    joining = threading.Thread(target=_join, args=(address, failures), daemon=True)
    joining.start()
    joining.join(seconds)
    if failures:
        return failures[0]
    return TimeoutError(f"no answer within {seconds:g} s") if joining.is_alive() else None


def _check_same(address: str) -> None:
    """A process is in one cluster at a time; by the port, because a host has many names."""
    match = ADDRESS.fullmatch(address)
    if match is None or match["port"] is None or address.startswith("ray://"):
        return
    here = str(ray.get_runtime_context().gcs_address)
    if here.rpartition(":")[2] != match["port"]:
        raise ClusterUnavailable(
            f"this process has joined the Ray cluster at {here} already, got {address}; call ray.shutdown() first"
        )


def _check_port(address: str) -> None:
    """Raises if nothing listens at the address; `auto` is looked up by Ray, which knows at once."""
    match = ADDRESS.fullmatch(address)
    if match is None or match["host"] is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=PORT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnavailable(
            f"no Ray cluster answers at {address}: {error}; start one there with `ray start --head`, or check --address"
        ) from error


def _join(address: str, failures: list[Exception]) -> None:
    for tries_left in reversed(range(JOIN_TRIES)):
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            return
        except Exception as error:  # noqa: BLE001 - raised by the caller's thread
            if not tries_left or NOT_STARTED not in str(error):
                failures.append(error)
                return
