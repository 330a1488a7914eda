"""A worker's heartbeat: what it says of itself, that it leaves, and that nothing rests on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.errors import StoreUnavailable
from headrace.roster import FORGOTTEN_MS, Heartbeat, parse
from headrace.vitals import AtWork, LaneSample
from tests.support.clock import HandClock

NOW = 1_800_000_000_000


class Board:
    """A store, and its own roster."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.away = False
        self.opened = 0
        self.wrote = asyncio.Event()

    @property
    def roster(self) -> Board:
        return self

    async def open(self) -> None:
        self.opened += 1

    async def put(self, name: str, text: str) -> None:
        self._there()
        self.rows[name] = text
        self.wrote.set()

    async def all(self) -> dict[str, str]:
        self._there()
        return dict(self.rows)

    async def drop(self, names: Sequence[str]) -> None:
        self._there()
        for name in names:
            del self.rows[name]

    def _there(self) -> None:
        if self.away:
            self.wrote.set()
            raise StoreUnavailable("away")


def heartbeat(board: Board, told: list[str]) -> Heartbeat:
    def tell(name: str, fields: Mapping[str, Any]) -> None:
        told.append(name)

    sample = LaneSample("main", (), ("stop",), work=AtWork(busy=3, concurrency=64, waiting=9), unsettled=2)
    return Heartbeat(board, HandClock(NOW), lambda: [sample], incarnation="me", instance="w-1", tell=tell)


async def one_beat(board: Board, told: list[str]) -> asyncio.Task[None]:
    task = asyncio.create_task(heartbeat(board, told).run())
    async with asyncio.timeout(20):
        await board.wrote.wait()
    return task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_it_says_what_it_works_at_and_that_it_leaves() -> None:
    """Its lanes with their figures; who left without a word long ago is swept away, who did so lately is not; a stop takes its own word back."""
    board, told = Board(), list[str]()
    other = '{"incarnation":"x","instance":null,"host":"h","pid":1,"version":"0","since_ms":0,"at_ms":%d,"lanes":{}}'
    board.rows = {"old": other % (NOW - FORGOTTEN_MS - 1), "late": other % (NOW - 60_000), "strange": "?"}
    task = await one_beat(board, told)
    mine = parse(board.rows["me"])
    assert mine is not None
    assert (mine.instance, mine.since_ms, mine.at_ms) == ("w-1", NOW, NOW)
    assert mine.lanes["main"] == {
        "in_flight": 3, "callers": 64, "waiting": 9, "unsettled": 2, "partitions": 0, "joined": True, "pauses": ["stop"],
    }  # fmt: skip
    assert set(board.rows) == {"me", "late", "strange"}
    await ended(task)
    assert "me" not in board.rows
    assert told == []


async def test_without_redis_it_goes_on_and_says_so_once() -> None:
    """The store is opened anew at each try: a process whose lanes need no Redis has not opened it."""
    board, told = Board(), list[str]()
    board.away = True
    task = await one_beat(board, told)
    assert not task.done()
    await ended(task)
    assert told == ["heartbeat_unwritten"]
    assert board.opened >= 2


async def test_a_redis_that_does_not_answer_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word is not taken back then; it grows old by itself."""
    board, told = Board(), list[str]()
    task = await one_beat(board, told)

    async def silent(names: Sequence[str]) -> None:
        await asyncio.Event().wait()

    board.drop = silent  # type: ignore[method-assign]
    monkeypatch.setattr("headrace.roster.LEAVE_S", 0.01)
    async with asyncio.timeout(20):
        await ended(task)
    assert "me" in board.rows
