"""Records that wait for a retry, counted by Kafka's own offsets. Above a cap the main lane stops reading; the retry lane never does.

An outage that is longer than any backoff must not turn into a retry topic that floods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.committed import Committed
from headrace.config import TopicNames
from headrace.errors import KafkaUnavailable
from headrace.instrument import Tell
from headrace.vitals import TopicPartition

EVERY_S = 5.0
AGAIN_BELOW = 0.8
REASON = "too many records wait for a retry"


class Holdable(Protocol):
    """A lane's source."""

    def hold(self, reason: str) -> None: ...

    def unhold(self, reason: str) -> None: ...


class Parked:
    """Watches the lag of the retry topic and of the wheels; `source` is the main lane's."""

    def __init__(self, source: Holdable, count: Callable[[], Mapping[TopicPartition, int]], cap: int, *, tell: Tell) -> None:
        self._source = source
        self._count = count
        self._cap = cap
        self._tell = tell
        self._held = False

    async def run(self) -> None:
        """Until cancelled. While the count cannot be read, nothing changes."""
        while True:
            try:
                counts = await asyncio.to_thread(self._count)
                self._tell("parked", {"records": [(*partition, count) for partition, count in counts.items()], "cap": self._cap})
                self.judge(sum(counts.values()))
            except KafkaUnavailable as error:
                self._tell("parked_unknown", {"error": str(error)})
            await asyncio.sleep(EVERY_S)

    def judge(self, parked: int) -> None:
        """Stop the main lane above the cap, let it go on below four fifths of it."""
        if not self._held and parked > self._cap:
            self._held = True
            self._tell("alert", {"what": REASON, "parked": parked, "cap": self._cap, "remedy": "mend the provider; main goes on by itself"})
            self._source.hold(REASON)
        elif self._held and parked < self._cap * AGAIN_BELOW:
            self._held = False
            self._source.unhold(REASON)


def counter(committed: Committed, topics: TopicNames, partitions: Mapping[str, int]) -> Callable[[], Mapping[TopicPartition, int]]:
    """Counts what is not resolved in each partition of the retry and the later topic, in `partitions` and those gained since.

    Blocking; raises KafkaUnavailable.
    """

    def count() -> Mapping[TopicPartition, int]:
        now = committed.partitions((topics.retry, topics.later))
        wanted = [(topic, number) for topic in now for number in range(max(now[topic], partitions[topic]))]
        return {partition: standing.lag for partition, standing in committed.read(wanted).items()}

    return count
