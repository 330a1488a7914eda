"""Requests on their way out: no place is lost, and no wait is left behind, whatever ends them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace.client.outbox import Outbox
from headrace.client.registry import Registry
from headrace.client.sender import Sender
from headrace.client.wording import Ready
from headrace.config import KafkaSettings, Settings
from headrace.errors import ClientClosed, HeadraceError, RequestRefused


class Taken:
    """A sender whose broker takes everything at once."""

    async def send(self, _key: bytes, _value: bytes, delivered: asyncio.Future[None]) -> None:
        delivered.set_result(None)


def outbox(room: int) -> tuple[Outbox, Registry]:
    registry = Registry(asyncio.Semaphore(room))
    return Outbox(registry, cast("Any", Taken()), keep_s=60.0), registry


async def test_who_is_refused_after_waiting_for_room_gives_it_back() -> None:
    """Two with one id and different contents wait for the one place: the second is refused, and the place is free for others."""
    box, registry = outbox(1)
    first, _ = await box.put(Ready("first", b"1", b"{}"))
    same = asyncio.create_task(box.put(Ready("same", b"1", b"{}")))
    other = asyncio.create_task(box.put(Ready("same", b"2", b"{}")))
    await asyncio.sleep(0)
    registry.room.release()  # a second place, so that both get their turn
    registry.drop(b"first", first)
    assert (await same)[1] is True
    with pytest.raises(RequestRefused, match="another content"):
        await other
    async with asyncio.timeout(10):
        assert (await box.put(Ready("last", b"3", b"{}")))[1] is True


async def test_once_shut_who_waits_for_room_is_told() -> None:
    """The places that ending gives back let nobody send any more."""
    box, registry = outbox(1)
    await box.put(Ready("first", b"1", b"{}"))
    waiting = asyncio.create_task(box.put(Ready("next", b"2", b"{}")))
    await asyncio.sleep(0)
    box.shut()
    registry.close()
    with pytest.raises(ClientClosed, match="before the request was sent"):
        await waiting


@pytest.fixture
def nowhere() -> Settings:
    """Give settings of a broker that is not there."""
    return Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:1", config={"log_level": 0}))


async def test_closing_ends_every_delivery(nowhere: Settings) -> None:
    """What the broker has not taken by then has failed; what is sent afterwards is refused, and waits for nothing."""
    sender = Sender(nowhere, timeout_s=30.0)
    pending: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(50)]
    for one in pending:
        await sender.send(b"key", b"{}", one)
    await sender.close(0.1)
    assert all(isinstance(one.exception(), HeadraceError) for one in pending)
    with pytest.raises(ClientClosed):
        await sender.send(b"key", b"{}", asyncio.get_running_loop().create_future())


async def test_a_dead_sender_leaves_nobody_waiting(nowhere: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its thread ends by itself, deliveries under way fail, and further ones are refused with the reason."""
    sender = Sender(nowhere, timeout_s=30.0)
    delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await sender.send(b"key", b"{}", delivered)

    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sender._thread, "turned", broken)
    async with asyncio.timeout(30):
        with pytest.raises(HeadraceError):
            await delivered
        with pytest.raises(HeadraceError, match="ZeroDivisionError"):
            await sender.send(b"key", b"{}", asyncio.get_running_loop().create_future())
    await sender.close(0.1)
