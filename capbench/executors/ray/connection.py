"""The connection to a Ray cluster: made within seconds, or refused in one line."""

from __future__ import annotations

import logging
import os
import socket
import threading

import ray

from capbench.errors import ClusterUnavailable
from capbench.executors.target import ADDRESS

PORT_SECONDS = 5.0
"""Timeout for a port to answer at all."""
JOIN_SECONDS = 20.0
"""Timeout for joining a cluster: Ray itself would try for minutes."""
CLIENT_JOIN_SECONDS = 50.0
"""Timeout for joining at ray:// addresses, where the head first starts a process for each client."""

NOT_STARTED, JOIN_TRIES = "Initialization failure from server", 3
"""Error of the head when the client server process fails to start, which happens occasionally."""


def connect(address: str) -> None:
    """Joins the cluster at an address; a process that is in one already stays there."""
    if ray.is_initialized():
        _check_same(address)
        return
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # as Ray reads it
    _check_port(address)
    failures: list[Exception] = []
    # A separate thread can be abandoned, and keeps Ray from replacing signal handlers.
    joining = threading.Thread(target=_join, args=(address, failures), daemon=True)
    joining.start()
    seconds = CLIENT_JOIN_SECONDS if address.startswith("ray://") else JOIN_SECONDS
    joining.join(seconds)
    if failures:
        raise ClusterUnavailable(_refusal(address, failures[0])) from failures[0]
    if joining.is_alive():
        raise ClusterUnavailable(
            f"{address} is not a Ray cluster, or did not answer within {seconds:g} s; check --address: "
            "HOST:6379 from a node of the cluster, ray://HOST:10001 from elsewhere"
        )


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


def _refusal(address: str, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "no Ray cluster runs on this machine; start one with `ray start --head`, or name one: --address HOST:PORT"
        )
    return f"the Ray cluster at {address} cannot be joined: {error}; the same Ray and Python must be on both sides"
