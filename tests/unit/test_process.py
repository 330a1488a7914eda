"""How a process stops its lanes: who is waited for, who is not, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import ending
from headrace.config import Settings
from headrace.process import _Process


class FakeLane:
    """A lane with a call in flight that ends when told."""

    def __init__(self, name: str, stuck: asyncio.Event | None = None) -> None:
        self.name = name
        self.pipeline = SimpleNamespace(in_flight=1)
        self.graces: list[float] = []
        self.left = False
        self._stuck = stuck

    async def stop(self, grace_s: float) -> bool:
        self.graces.append(grace_s)
        return grace_s > 0

    async def leave(self, within_s: float) -> None:
        self.left = True

    async def run(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self._stuck is None or self._stuck.is_set():
                    raise


async def stopped(*lanes: FakeLane, failed: str = "") -> tuple[bool, list[tuple[str, Mapping[str, Any]]]]:
    """Stop these lanes, of which one may have failed; whether no call was cut off, and what was told."""
    told: list[tuple[str, Mapping[str, Any]]] = []
    shared = SimpleNamespace(settings=Settings(grace_s=7.0), tell=lambda name, fields: told.append((name, fields)))
    process = _Process(shared, [lane.name for lane in lanes])  # type: ignore[arg-type]
    tasks = [asyncio.create_task(lane.run(), name=lane.name) for lane in lanes]
    await asyncio.sleep(0)
    for task in tasks:
        if task.get_name() == failed:
            task.cancel()
    await asyncio.sleep(0)
    whole = await process._stop(lanes, tasks, None, asyncio.Event())  # type: ignore[arg-type]
    return whole, told


async def test_a_lane_that_failed_is_not_waited_for_and_the_others_have_their_grace() -> None:
    """Its calls were cancelled with it; one that ignored that must not hold up the end for the whole grace."""
    lanes = FakeLane("main"), FakeLane("retry")
    whole, told = await stopped(*lanes, failed="main")
    assert (lanes[0].graces, lanes[1].graces) == ([0.0], [7.0])
    assert not whole
    assert all(lane.left for lane in lanes)
    assert [name for name, _ in told] == ["stopping"]


async def test_what_ignores_its_cancellation_is_named_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lanes leave their groups all the same."""
    monkeypatch.setattr(ending.cancelled, "__defaults__", (0.05,))
    let = asyncio.Event()
    lanes = FakeLane("main", stuck=let), FakeLane("retry")
    whole, told = await stopped(*lanes)
    assert whole
    assert all(lane.left for lane in lanes)
    assert [(name, fields.get("tasks")) for name, fields in told] == [("stopping", None), ("cancel_ignored", ["main"])]
    let.set()
    for task in asyncio.all_tasks():
        if task.get_name() == "main":
            await ending.cancelled([task])
