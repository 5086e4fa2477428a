"""The mailbox of a cluster: early reports of workers, kept until the driver reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class Mailbox:
    """An actor's class. Losing its content costs nothing but time: a group's last report repeats all trials."""

    def __init__(self) -> None:
        self._boxes: dict[str, list[bytes]] = defaultdict(list)

    def put(self, box: str, report: bytes) -> None:
        """Keeps a worker's report on the group of that box."""
        self._boxes[box].append(report)

    def take(self, boxes: Iterable[str]) -> dict[str, list[bytes]]:
        """Empties these boxes and returns what was in them."""
        return {box: self._boxes.pop(box) for box in boxes if box in self._boxes}
