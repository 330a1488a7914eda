"""What the watchdog sees of a running lane: what its threads and its loop publish, put together. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from headrace.assignment import Assignment
from headrace.flow import Flow
from headrace.instrument import Tell
from headrace.vitals import AtWork, LaneSample, PartitionSample, Reading, ThreadSample
from headrace.worker_thread import WorkerThread

REDIS_AWAY = "Redis is out of reach"
RESTORING = "what Redis lost is being restored"
UNHEARD = Reading(-1, -1)


class Source(Protocol):
    """A lane's source, as far as it is watched."""

    thread: WorkerThread

    @property
    def holds(self) -> frozenset[str]: ...

    @property
    def joined(self) -> bool: ...

    @property
    def broker_away(self) -> bool: ...

    @property
    def readings(self) -> Mapping[tuple[str, int], Reading]: ...


class Settler(Protocol):
    """A lane's settler, as far as it is watched."""

    thread: WorkerThread
    settled_at: float

    @property
    def waiting(self) -> int: ...


class Monitor:
    """Of one lane. `shut` is why nobody can be called (None: somebody can), `closed` whether nothing is admitted, `waits` whether it waits for Redis.

    `sample` and `threads` may be asked from any thread, also while the lane's loop is blocked.
    """

    def __init__(
        self,
        lane: str,
        *,
        assignment: Assignment,
        flow: Flow,
        source: Source,
        settler: Settler,
        shut: Callable[[], str | None],
        closed: Callable[[], bool],
        waits: bool,
    ) -> None:
        self._lane = lane
        self._assignment = assignment
        self._flow = flow
        self._source = source
        self._settler = settler
        self._shut = shut
        self._closed = closed
        self._waits = waits
        self._store_away = False
        self.work = AtWork()

    def hearing(self, tell: Tell) -> Tell:
        """`tell`, listened to: whether Redis is out of reach is known to the lane's admission, which says so at each end."""

        def heard(name: str, fields: Mapping[str, Any]) -> None:
            if name in ("store_unavailable", "store_back"):
                self._store_away = name == "store_unavailable"
            tell(name, fields)

        return heard

    def sample(self) -> LaneSample:
        """The lane now, nothing of it older than two seconds."""
        work, readings, standings = self.work, self._source.readings, self._assignment.standings()
        return LaneSample(
            lane=self._lane,
            partitions=tuple(
                PartitionSample(*tp, standing, readings.get(tp, UNHEARD), work.calls.get(tp)) for tp, standing in standings.items()
            ),
            pauses=tuple(self._pauses()),
            full=self._flow.full,
            work=work,
            unsettled=self._settler.waiting,
            settled_at=self._settler.settled_at,
            joined=self._source.joined and all(standing.restored for standing in standings.values()),
            store_away=self._closed() or (self._store_away and self._waits),
            received=self._flow.taken_records,
            received_bytes=self._flow.taken_bytes,
        )

    def threads(self) -> Iterator[ThreadSample]:
        """Those that must come round. Without a broker the settle thread may wait as long as the outage lasts."""
        for thread in (self._source.thread, *(() if self._source.broker_away else (self._settler.thread,))):
            if thread.alive:  # one that has ended is a failure, and stops the process
                yield ThreadSample(thread.name, thread.turned_at, thread.patience_s, thread.ident)

    def _pauses(self) -> Iterator[str]:
        yield from sorted(self._source.holds)
        if self._store_away and self._waits:
            yield REDIS_AWAY
        if self._closed():
            yield RESTORING
        if (why := self._shut()) is not None:
            yield why
        if self._source.broker_away:
            yield "no broker can be reached"
