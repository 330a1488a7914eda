"""Deadlines end what takes too long, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from headrace.deadline import Deadlines


async def test_what_takes_too_long_ends_with_a_timeout() -> None:
    """A wait that would never end raises TimeoutError, and the task goes on as if nothing had been cancelled."""
    with pytest.raises(TimeoutError), Deadlines().within(0.01):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_what_ends_in_time_is_left_alone() -> None:
    """After a block has ended its deadline does not reach the task any more."""
    deadlines = Deadlines()
    with deadlines.within(0.01):
        await asyncio.sleep(0)
    await asyncio.sleep(0.12)


async def test_each_of_many_ends_at_its_own_time() -> None:
    """Short and long deadlines side by side: the short ones end, the long ones do not."""
    deadlines = Deadlines()
    ended: list[float] = []

    async def wait(left_s: float) -> None:
        try:
            with deadlines.within(left_s):
                await asyncio.sleep(0.3)
        except TimeoutError:
            ended.append(left_s)

    await asyncio.gather(*(wait(left_s) for left_s in (0.02, 10.0, 0.05, 20.0)))
    assert sorted(ended) == [0.02, 0.05]


async def test_a_cancellation_from_elsewhere_passes_through() -> None:
    """A task that is cancelled by its owner ends as cancelled, not as timed out."""
    deadlines = Deadlines()
    entered = asyncio.Event()

    async def work() -> None:
        with deadlines.within(5.0):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_a_cancellation() -> None:
    """Where the owner cancels in the same moment as the deadline, the owner's word counts."""
    deadlines = Deadlines()
    entered = asyncio.Event()

    async def work() -> None:
        with deadlines.within(0.01):
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                task.cancel()
                raise

    task = asyncio.create_task(work())
    await entered.wait()
    with pytest.raises(asyncio.CancelledError):
        await task
