"""What becomes of a client whose reading ends by itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headrace.client import reader as module
from headrace.client.reader import Reader
from headrace.client.registry import Registry
from headrace.config import Settings
from headrace.results import Follower


async def test_a_look_back_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who waits for an answer of before would wait for ever."""

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Follower, "open", lambda _self: None)
    monkeypatch.setattr(Follower, "poll", lambda *_: time.sleep(0.01) or [])
    monkeypatch.setattr(module, "LookBack", broken)
    failed: asyncio.Queue[BaseException] = asyncio.Queue()
    registry = Registry(asyncio.Semaphore(1))
    reader = Reader(Settings(), registry, failed=failed.put_nowait)
    await reader.open()
    registry.add(b"a", b"", 60.0)
    reader.seek(b"a", 0)
    async with asyncio.timeout(30):
        assert isinstance(await failed.get(), ZeroDivisionError)
    await reader.close()
