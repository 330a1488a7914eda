"""Requests at a steady rate, whatever becomes of them: with copies among them, and bytes that are no request."""

from __future__ import annotations

import asyncio
import random
import time

import orjson

from headrace.local.stub import Rule
from tests.support.bench import Bench
from tests.support.history import History

TICK_S = 0.05
COPIES, UNDECODABLE = 0.08, 0.01
_LATE = 300  # most copies are of so many last ids, which may be under way; the others of any
_OF_LATE = 0.7


def faulty(low_ms: float, high_ms: float) -> list[Rule]:
    """What the stub does to such a load: one call in eight fails in a way that may pass, one id in fifty can never succeed."""
    rules: list[tuple[str, dict[str, object], object]] = [
        ("refused", {"share": 0.02}, "invalid_request"),
        ("server_error", {"share": 0.06, "first": 1}, "server_error"),
        ("limited", {"share": 0.04, "first": 1}, {"signal": "rate_limited", "retry_after_s": 1}),
        ("silent", {"share": 0.02, "first": 1}, "hang"),
        ("slow", {}, {"latency": {"uniform_ms": [low_ms, high_ms]}}),
    ]
    return [Rule.model_validate({"name": name, "match": match, "action": action}) for name, match, action in rules]


class Load:
    """An open loop: `task = create_task(load.run())`, then `load.stop()`. `ids` are those the broker was given."""

    def __init__(self, bench: Bench, history: History, chance: random.Random, *, rate_s: float, prefix: str = "r") -> None:
        self.ids: list[str] = []
        self.undecodable = 0
        self.copies = 0
        self._bench = bench
        self._history = history
        self._chance = chance
        self._rate_s = rate_s
        self._prefix = prefix
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until stopped; then the broker has everything."""
        began, sent = time.monotonic(), 0
        while not self._stopping.is_set():
            due = int((time.monotonic() - began) * self._rate_s)
            for _ in range(due - sent):
                self._one()
            sent = due
            self._bench.producer.poll(0)
            await asyncio.sleep(TICK_S)
        await asyncio.to_thread(self._bench.flush)

    def stop(self) -> None:
        """No more of it."""
        self._stopping.set()

    def _one(self) -> None:
        draw = self._chance.random()
        if draw < UNDECODABLE:
            self.undecodable += 1
            self._bench.send(b"\xff{" + str(self.undecodable).encode())
        elif draw < UNDECODABLE + COPIES and self.ids:
            self.copies += 1
            among = self.ids[-_LATE:] if self._chance.random() < _OF_LATE else self.ids
            self._ask(self._chance.choice(among), partition=self._chance.randrange(self._bench.partitions("main")))
        else:
            self.ids.append(f"{self._prefix}{len(self.ids):06}")
            self._ask(self.ids[-1])

    def _ask(self, request_id: str, *, partition: int = -1) -> None:
        value = orjson.dumps({"request_id": request_id, "prompt": f"hello {request_id}"})
        self._bench.send(value, key=request_id.encode(), partition=partition)
        self._history.produced(request_id)
