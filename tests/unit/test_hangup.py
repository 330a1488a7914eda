"""SIGHUP: a worker reads its keys again, and is not ended by it while it is still being built."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import process
from headrace.config import Settings
from headrace.errors import Exit


@pytest.fixture
def unheard() -> Iterator[list[int]]:
    """What would have ended the process."""
    found: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGHUP, before)


async def test_a_hangup_is_heard_from_the_start_on(monkeypatch: pytest.MonkeyPatch, unheard: list[int]) -> None:
    """Sent while it waits for Redis, and again while it works: the second has the keys read again, neither ends it."""
    reread = asyncio.Event()

    @asynccontextmanager
    async def slowly(*_: Any, **__: Any) -> AsyncIterator[Any]:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        assert not reread.is_set()
        yield SimpleNamespace(llm=SimpleNamespace(keys=SimpleNamespace(reread=reread.set)))

    class Working:
        def __init__(self, *_: Any) -> None:
            os.kill(os.getpid(), signal.SIGHUP)

        async def run(self, *_: Any) -> Exit:
            async with asyncio.timeout(20):
                await reread.wait()
            return Exit.DONE

    monkeypatch.setattr(process, "built", slowly)
    monkeypatch.setattr(process, "_Process", Working)
    assert await process.serve(Settings(), ["main"], tell=lambda *_: None) is Exit.DONE
    assert not unheard
