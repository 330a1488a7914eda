"""Tasks that stand and fall together, and such as ignore their cancellation; a process that ends at last."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from headrace import ending
from headrace.ending import LastResort, cancelled, together


async def clings(until: asyncio.Event) -> None:
    """Ignores every cancellation, as a handler of the user's may."""
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("the reason")


async def test_the_first_to_fail_ends_the_others() -> None:
    """And its error is raised as it is."""
    others: list[str] = []

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            others.append("ended")

    with pytest.raises(ValueError, match="the reason"):
        await together({"a": other(), "b": fails(), "c": other()})
    assert others == ["ended", "ended"]


async def test_a_cancellation_reaches_all_of_them() -> None:
    """None is left behind."""
    others: list[str] = []

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            others.append("ended")

    task = asyncio.create_task(together({"a": other(), "b": other()}))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert others == ["ended", "ended"]


async def test_one_that_ignores_its_cancellation_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TaskGroup would wait for it for ever, and nobody would learn why the rest has ended."""
    monkeypatch.setattr(ending.cancelled, "__defaults__", (0.05,))
    let = asyncio.Event()
    with pytest.raises(ValueError, match="the reason"):
        await asyncio.wait_for(together({"clinging": clings(let), "b": fails()}), 10)
    let.set()


async def test_who_ignores_it_is_named() -> None:
    """By the task's name; those that have ended are not."""
    let = asyncio.Event()
    tasks = [asyncio.create_task(clings(let), name="clinging"), asyncio.create_task(asyncio.sleep(60), name="well-behaved")]
    await asyncio.sleep(0)
    assert await cancelled(tasks, 0.05) == ["clinging"]
    let.set()
    await asyncio.wait(tasks)
    assert await cancelled(tasks) == []


CHILD = """
import sys, threading
from headrace.ending import LastResort
last = LastResort(0.2)
last.arm(6)
print("said", flush=False)
if sys.argv[1] == "disarmed":
    last.disarm()
threading.Event().wait(1.5 if sys.argv[1] == "disarmed" else 60)
"""


@pytest.mark.parametrize(("kind", "code"), [("armed", 6), ("disarmed", 0)])
def test_a_process_that_is_kept_from_ending_ends(kind: str, code: int) -> None:
    """With its exit code, and what it had to say written; one that ended by itself is left alone, and so is who embeds it."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", CHILD, kind], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (code, "said\n")
    assert time.monotonic() - began < 45


def test_disarming_what_was_never_armed_is_nothing() -> None:
    """A start that failed."""
    LastResort().disarm()
