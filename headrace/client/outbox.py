"""Requests on their way to the broker, each with its entry in the registry made before it is sent."""

from __future__ import annotations

import asyncio
import time

from headrace.client.registry import Entry, Registry
from headrace.client.sender import Sender
from headrace.client.wording import Ready
from headrace.errors import ClientClosed, HeadraceError, RequestRefused


class Outbox:
    """At most as many without an end as the registry has room for; beyond that, `put` waits."""

    def __init__(self, registry: Registry, sender: Sender, *, keep_s: float) -> None:
        self._registry = registry
        self._sender = sender
        self._keep_s = keep_s
        self._closed = False

    def shut(self) -> None:
        """Nothing is sent any more; who waits for room gets ClientClosed."""
        self._closed = True

    async def close(self, timeout_s: float) -> None:
        """What was handed over still goes out."""
        self.shut()
        await self._sender.close(timeout_s)

    async def put(self, asked: Ready) -> tuple[Entry, bool]:
        """Its entry, and whether it was made here: before it is sent, since the result may come at once. An id that is outstanding is not sent again."""
        key, registry = asked.request_id.encode(), self._registry
        if (known := self._known(key, asked)) is not None:
            return known, False
        await registry.room.acquire()
        try:
            known = self._known(key, asked)
        except RequestRefused:
            registry.room.release()
            raise
        if known is not None or self._closed:
            registry.room.release()
            if known is None:
                raise ClientClosed("the client was closed, or its reader has ended, before the request was sent")
            return known, False
        entry = registry.entries.get(key) or registry.add(key, asked.fingerprint, 0.0)
        entry.fingerprint, entry.until_s, entry.holds = asked.fingerprint, time.monotonic() + self._keep_s, True
        delivered = entry.delivered = asyncio.get_running_loop().create_future()
        delivered.add_done_callback(lambda sent: None if _good(sent) else registry.fail(key, entry))
        try:
            await self._sender.send(key, asked.value, delivered)
        except BaseException as error:
            _refuse(delivered, error)
            raise
        return entry, True

    def _known(self, key: bytes, asked: Ready) -> Entry | None:
        """The entry of an id that was submitted here, and has no end yet or one that nobody has fetched."""
        entry = self._registry.entries.get(key)
        if entry is None or entry.delivered is None:
            return None
        if entry.fingerprint != asked.fingerprint:
            raise RequestRefused(f"{asked.request_id}: is outstanding here with another content; give each request its own id")
        return entry


def _good(sent: asyncio.Future[None]) -> bool:
    return not sent.cancelled() and sent.exception() is None


def _refuse(delivered: asyncio.Future[None], error: BaseException) -> None:
    """Others who wait for the same delivery are told too."""
    given_up = HeadraceError("who submitted it gave up before it was sent; submit it again")
    delivered.set_exception(error if isinstance(error, HeadraceError) else given_up)
    delivered.exception()  # seen: whoever awaits it is told all the same, and nobody need


async def delivery(entry: Entry) -> None:
    """Shielded: who gives up waiting for it does not end it for others."""
    if entry.delivered is not None:
        await asyncio.shield(entry.delivered)
