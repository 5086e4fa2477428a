"""The mailbox of a cluster: what workers have to tell before their groups end, kept until the driver asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class Mailbox:
    """An actor's class. What it holds is a courtesy: a group's last report says everything again."""

    def __init__(self) -> None:
        self._boxes: dict[str, list[bytes]] = defaultdict(list)

    def put(self, box: str, report: bytes) -> None:
        """A worker's report on the group of that box."""
        self._boxes[box].append(report)

    def take(self, boxes: Iterable[str]) -> dict[str, list[bytes]]:
        """What came for these boxes since they were last emptied."""
        return {box: self._boxes.pop(box) for box in boxes if box in self._boxes}
