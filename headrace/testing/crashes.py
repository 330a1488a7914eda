"""Where a worker is to die: about a step under `ctx.once`, at a call of the model, or before an outcome is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from headrace.claims import Claim
from headrace.effects import StepStore
from headrace.llm import Call, Reply, Transport
from headrace.once import Begun, Run

Point = tuple[Literal["before", "within", "after", "call", "settle"], str]


class Crashes:
    """The points that are still to come. `die` ends the worker; it is set anew for each."""

    def __init__(self) -> None:
        self._planned: list[Point] = []
        self.die: Callable[[], None] = lambda: None
        self.count = 0

    def plan(self, point: Point) -> None:
        """One more crash; the same point again is the next time it is passed."""
        self._planned.append(point)

    @property
    def planned(self) -> list[Point]:
        """Those that have not come yet."""
        return list(self._planned)

    def strikes(self, *point: Any) -> bool:
        """Whether the worker dies here: then its loop stops, and nothing of it goes on."""
        if point not in self._planned:
            return False
        self._planned.remove(point)
        self.count += 1
        self.die()
        return True

    async def passed(self, *point: Any) -> None:
        """Returns, or never: who has crashed does not go on, not even into its `finally`."""
        if self.strikes(*point):
            await asyncio.Event().wait()


class CrashingSteps:
    """A store of steps with crashes about them."""

    def __init__(self, steps: StepStore, crashes: Crashes) -> None:
        self._steps = steps
        self._crashes = crashes

    async def begin(self, claim: Claim, key: str, nonce: str, *, again: bool) -> Begun:
        """As the store's."""
        begun = await self._steps.begin(claim, key, nonce, again=again)
        if isinstance(begun, Run):
            await self._crashes.passed("before", key)
        return begun

    async def end(self, claim: Claim, key: str, nonce: str, value: bytes | None) -> bool:
        """As the store's."""
        await self._crashes.passed("within", key)
        told = await self._steps.end(claim, key, nonce, value)
        await self._crashes.passed("after", key)
        return told


class CrashingTransport:
    """A model with crashes while its answer is on its way. Calls are counted from 1 over the whole test."""

    def __init__(self, transport: Transport, crashes: Crashes) -> None:
        self._transport = transport
        self._crashes = crashes
        self._calls = 0

    async def send(self, call: Call) -> Reply:
        """As the transport's."""
        self._calls += 1
        number = self._calls
        reply = await self._transport.send(call)
        await self._crashes.passed("call", str(number))
        return reply

    async def close(self) -> None:
        """As the transport's."""
        await self._transport.close()
