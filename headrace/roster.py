"""Who works in this fleet: each process says so in Redis every few seconds, and who reads it judges by the age of that word."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import orjson

from headrace import __version__
from headrace.clock import Clock
from headrace.errors import StoreLost, StoreUnavailable
from headrace.instrument import Tell
from headrace.redact import clip
from headrace.store.roster import RosterStore
from headrace.vitals import EndpointSample, LaneSample, LettersSample

EVERY_S = 3.0
LEAVE_S = 1.0
SILENT_MS = 15_000  # as long as a claim lives without a renewal: who says nothing for that long counts as gone
FORGOTTEN_MS = 600_000
NAME_BYTES = 128


class Opened(Protocol):
    """The store behind it, which a lane that needs no Redis has not opened."""

    @property
    def roster(self) -> RosterStore: ...

    async def open(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One process, as it said of itself. Times are epoch ms; `lanes` by name: calls in flight, records waiting, why it pauses.

    `endpoints` are those it calls; `letters` the open dead letters, where it follows them and has read what there is.
    """

    incarnation: str
    instance: str | None
    host: str
    pid: int
    version: str
    since_ms: int
    at_ms: int
    lanes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    endpoints: tuple[EndpointSample, ...] = ()
    letters: LettersSample | None = None

    def silent(self, now_ms: int) -> bool:
        """Whether it has said nothing for so long that it is gone, frozen, or cut off from Redis."""
        return now_ms - self.at_ms > SILENT_MS


def parse(text: str) -> Member | None:
    """What a worker wrote; None for what another version did."""
    try:
        said = orjson.loads(text)
        return Member(
            str(said["incarnation"]), None if said["instance"] is None else str(said["instance"]), str(said["host"]), int(said["pid"]),
            str(said["version"]), int(said["since_ms"]), int(said["at_ms"]), {str(name): dict(lane) for name, lane in said["lanes"].items()},
            tuple(_endpoint(one) for one in said.get("endpoints", ())), _letters(said.get("letters")),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _endpoint(said: Mapping[str, Any]) -> EndpointSample:
    out, out_s, healthy = said["out"], said["out_s"], said["healthy"]
    return EndpointSample(
        str(said["provider"]), str(said["address"]), int(said["in_flight"]), None if out is None else str(out),
        None if out_s is None else float(out_s), None if healthy is None else bool(healthy),
    )  # fmt: skip


def _letters(said: Mapping[str, Any] | None) -> LettersSample | None:
    if said is None:
        return None
    oldest_ms = said["oldest_ms"]
    counts = {str(name): int(count) for name, count in said["open"].items()}
    return LettersSample(counts, None if oldest_ms is None else int(oldest_ms), int(said["untracked"]))


class Heartbeat:
    """`samples` gives the lanes of this process, `endpoints` and `letters` what else a `Member` says.

    Nothing rests on it: while Redis is away nobody hears it, and the work goes on.
    """

    def __init__(
        self,
        store: Opened,
        clock: Clock,
        samples: Callable[[], Sequence[LaneSample]],
        *,
        incarnation: str,
        instance: str | None,
        tell: Tell,
        endpoints: Callable[[], tuple[EndpointSample, ...]] = tuple,
        letters: Callable[[], LettersSample | None] = lambda: None,
    ) -> None:
        self._endpoints = endpoints
        self._letters = letters
        self._store = store
        self._clock = clock
        self._samples = samples
        self._incarnation = incarnation
        self._instance = instance
        self._tell = tell
        self._since_ms = clock.now_ms()
        self._told = False

    async def run(self) -> None:
        """Until cancelled; then it says that it leaves."""
        await self._reopen()  # a process whose lanes need no Redis has not opened it
        try:
            await self._try(self._sweep)
            while True:
                await self._try(self.beat)
                await asyncio.sleep(EVERY_S)
        finally:
            await self._leave()

    async def beat(self) -> None:
        """Once. Raises StoreUnavailable or StoreLost."""
        lanes = {lane.lane: _said(lane) for lane in self._samples()}
        host = clip(platform.node(), NAME_BYTES)
        now_ms = self._clock.now_ms()
        member = Member(
            self._incarnation, self._instance, host, os.getpid(), __version__, self._since_ms, now_ms, lanes,
            self._endpoints(), self._letters(),
        )  # fmt: skip
        await self._store.roster.put(self._incarnation, orjson.dumps(asdict(member)).decode())

    async def _sweep(self) -> None:
        """Those that left without a word, long ago."""
        now_ms = self._clock.now_ms()
        members = {name: parse(text) for name, text in (await self._store.roster.all()).items()}
        await self._store.roster.drop([name for name, one in members.items() if one is not None and now_ms - one.at_ms > FORGOTTEN_MS])

    async def _leave(self) -> None:
        """At once or not at all: a Redis that is away must not hold up a stop, and a word that is not taken back grows old."""
        with suppress(TimeoutError, StoreUnavailable, StoreLost):
            async with asyncio.timeout(LEAVE_S):
                await self._store.roster.drop([self._incarnation])

    async def _try(self, step: Callable[[], Any]) -> None:
        try:
            await step()
        except (StoreUnavailable, StoreLost) as error:
            if not self._told:
                self._tell("heartbeat_unwritten", {"error": str(error), "note": "`headrace status` does not see this worker"})
            self._told = True
            await self._reopen()
        else:
            self._told = False

    async def _reopen(self) -> None:
        try:
            await self._store.open()
        except (StoreUnavailable, StoreLost):
            return  # told when it is written to


def _said(lane: LaneSample) -> dict[str, Any]:
    work = lane.work
    return {
        "in_flight": work.busy,
        "callers": work.concurrency,
        "waiting": work.waiting,
        "unsettled": lane.unsettled,
        "partitions": len(lane.partitions),
        "joined": lane.joined,
        "pauses": list(lane.pauses),
    }
