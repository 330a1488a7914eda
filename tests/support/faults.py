"""What the tests of faults share: requests that keep coming while a fault lasts, and every promise judged once it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from headrace.audit import Verdict
from headrace.local.stub import Rule, StubLLM
from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.history import History

AGAIN = Rule.model_validate({"name": "again", "match": {"share": 0.2, "first": 1}, "action": "server_error"})
FAR_S = 4.5  # beyond what the retry lane holds itself: such a request goes by the wheels


def slow(low_ms: float, high_ms: float) -> Rule:
    """Calls that take that long."""
    return Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [low_ms, high_ms]}}})


class Asking:
    """Requests of a test, all of them noted in its history. Every one is expected to be completed."""

    def __init__(self, bench: Bench, stub: StubLLM) -> None:
        self._bench = bench
        self._stub = stub
        self.history = History()
        self.ids: list[str] = []

    async def ask(self, count: int, *, far_s: float = 0.0, partition: int = -1) -> list[str]:
        """So many more, due in `far_s`; once the broker has them."""
        fresh = [f"r{len(self.ids) + number:05}" for number in range(count)]
        fields = {"next_retry_at": time.time() + far_s} if far_s else {}
        await asyncio.to_thread(lambda: self._bench.ask(*fresh, partition=partition, **fields))
        self.ids += fresh
        for request_id in fresh:
            self.history.produced(request_id)
        return fresh

    async def until(self, done: Callable[[], bool], *, far_s: float = 0.0, timeout_s: float = 60) -> None:
        """Ten more every tenth of a second until `done()`."""
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, f"not done after {len(self.ids)} requests"
            await self.ask(10, far_s=far_s)
            await asyncio.sleep(0.1)

    async def settled(self, lanes: Sequence[str] = ("main", "retry", "later"), *, timeout_s: float = 80) -> Verdict:
        """Once every request has its result: each completed once, lag 0, no promise broken, no call repeated beyond the history's bound."""
        await self._bench.finished(self.ids, timeout_s=timeout_s)
        await self._bench.until_drained(lanes, timeout_s=60)
        counts = await self._bench.finished(self.ids)
        judged = [lane for lane in lanes if lane != "dlq"]  # whose offsets promise nothing to the auditor
        verdict = await audited(self._bench, self._stub, self.history, lanes=judged)
        ours = set(self.ids)  # a record without an id has a notice too
        assert {key: n for key, n in counts.items() if key[0] in ours} == {(request_id, "completed"): 1 for request_id in self.ids}
        return verdict


async def until(holds: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
    """Until `holds()`, asked twenty times a second."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"no {what} in {timeout_s} s"
        await asyncio.sleep(0.05)
