"""Records that fell out of the wheels' topic before they were moved: looked for once an assignment, before anything is committed over them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.committed import Committed
from headrace.errors import KafkaUnavailable
from headrace.wheels.mover import Tell


class Losses:
    """A reader that finds its offset deleted goes on from the log's start, without a word. Used by the wheels' thread."""

    def __init__(self, committed: Committed, topic: str, tell: Tell) -> None:
        self._committed, self._topic, self._tell = committed, topic, tell
        self._unseen: set[int] = set()

    def assigned(self, partitions: Iterable[int]) -> None:
        """These are ours now."""
        self._unseen |= set(partitions)

    def forget(self, partitions: Iterable[int]) -> None:
        """Revoked or lost."""
        self._unseen -= set(partitions)

    def told(self) -> bool:
        """Whether what is lost of our partitions has been told by now; False: the broker did not answer, try again later."""
        if not self._unseen:
            return True
        try:
            standings = self._committed.read([(self._topic, partition) for partition in self._unseen])
        except KafkaUnavailable as error:
            self._tell("committed_unreadable", {"group": "wheels", "error": str(error)})
            return False
        for (topic, partition), standing in standings.items():
            lost = standing.lost if standing.committed >= 0 else standing.start  # only we write there: nothing of it was moved yet
            if lost:
                reason = "deleted by retention before they were moved"
                self._tell("records_lost", {"partition": f"{topic}/{partition}", "reason": reason, "records": lost})
        self._unseen.clear()
        return True
