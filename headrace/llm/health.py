"""Active health checks: a GET that takes an endpoint out when it fails twice in a row, and brings it back when it succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import aiohttp
from yarl import URL

from headrace.config import HealthSettings
from headrace.llm.balance import Balance
from headrace.llm.direct import open_session
from headrace.llm.endpoint import Endpoint
from headrace.llm.errors import classify_exception

_TWICE = 2  # one lost packet is no outage
_READ_BYTES = 65_536


class HealthCheck:
    """Asks one endpoint. `ask` is one question; `run` asks until cancelled, the first time at once."""

    def __init__(self, settings: HealthSettings, balance: Balance, endpoint: Endpoint) -> None:
        self._settings = settings
        self._balance = balance
        self._endpoint = endpoint
        self._url = URL(f"{URL(endpoint.server.base_url).origin()}{settings.path}")  # joined as texts: `//…` names no other host
        self._failed = 0

    async def run(self) -> None:
        """With a connection of its own, so that no call has to wait for it."""
        async with open_session(1) as session:
            while True:
                await self.ask(session)
                await asyncio.sleep(self._settings.every_s)

    async def ask(self, session: aiohttp.ClientSession) -> None:
        """Once."""
        error = await self._error(session)
        self._failed = 0 if error is None else self._failed + 1
        if self._failed == 0 or self._failed >= _TWICE:
            self._balance.checked(self._endpoint, well=error is None, why=error or "")

    async def _error(self, session: aiohttp.ClientSession) -> str | None:
        """Why it does not work; None if it does."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        try:
            async with session.get(self._url, headers=self._endpoint.key.headers, timeout=timeout, allow_redirects=False) as reply:
                with suppress(aiohttp.ClientError):  # its head has said what there is to know; the rest is read for the connection's sake
                    await reply.content.read(_READ_BYTES)
                return None if 200 <= reply.status < 300 else f"HTTP {reply.status}"
        except Exception as error:  # noqa: BLE001  whatever it is, the endpoint did not say that it works; it is told
            return classify_exception(error).error_class.value


def checks_of(balance: Balance) -> Iterator[HealthCheck]:
    """A check for each endpoint, where the configuration asks for them."""
    if balance.health is not None:
        for endpoint in balance.endpoints:
            yield HealthCheck(balance.health, balance, endpoint)
