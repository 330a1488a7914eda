"""The transport for clients the user builds (Azure, own credentials): openai.AsyncOpenAI, its retries off.

Costs several times `direct`'s CPU a call; types and helpers of the SDK are not used, only its way to the server.
"""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import openai

from headrace.errors import CallFailed
from headrace.llm.bounded import at_most, bind
from headrace.llm.direct import open_session
from headrace.llm.errors import classify_exception
from headrace.llm.transport import MAX_BODY_BYTES, Call, Reply, out_of_time, oversized


def above_debug(record: logging.LogRecord) -> bool:
    """A log filter: at DEBUG the SDK writes whole requests, prompts included."""
    return record.levelno > logging.DEBUG


class SdkTransport:
    """Posts by an `AsyncOpenAI`. Headers given win over the client's; with `own_auth` the client's credentials stay.

    `latency_ms` includes the SDK's own work. A client of an HTTP library other than the SDK's reads bodies whole before
    their size is looked at; then the time-out bounds what is read.
    """

    def __init__(self, client: openai.AsyncOpenAI, *, own_auth: bool = True, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        # One owner of retries: a client with retries on would multiply every attempt.
        self._client = client.with_options(max_retries=0) if client.max_retries else client
        self._own_auth = own_auth
        bind(self._client)
        logging.getLogger("openai._base_client").addFilter(above_debug)
        self._max_body_bytes = max_body_bytes

    @classmethod
    def to(cls, base_url: str, *, pool: int, max_body_bytes: int = MAX_BODY_BYTES) -> SdkTransport:
        """A transport with a client of ours: `pool` connections, no cookies, no proxies from the environment."""
        http = openai.DefaultAioHttpClient(trust_env=False, follow_redirects=False)
        # Two jars: the client's, and the one of the aiohttp session beneath, which can only be given from here.
        http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        http._transport.client = partial(open_session, pool)  # type: ignore[attr-defined]  # noqa: SLF001
        base, _, query = base_url.partition("?")
        client = openai.AsyncOpenAI(base_url=base, default_query=dict(parse_qsl(query)), api_key="unused", max_retries=0, http_client=http)
        return cls(client, own_auth=False, max_body_bytes=max_body_bytes)

    async def send(self, call: Call) -> Reply:
        if call.timeout_s <= 0:
            raise out_of_time()
        start = monotonic()
        try:
            with at_most(self._max_body_bytes):
                async with asyncio.timeout(call.timeout_s):
                    response = await self._post(call)
        except Exception as error:  # noqa: BLE001 - the seam's contract: whatever it is, it leaves as CallFailed, classified
            raise CallFailed(classify_exception(error)) from None
        if len(response.content) > self._max_body_bytes:
            raise oversized(self._max_body_bytes)
        return Reply(response.status_code, response.headers, response.content, round((monotonic() - start) * 1000))

    async def close(self) -> None:
        await self._client.close()

    async def _post(self, call: Call) -> httpx2.Response:
        # A user's client may look into the body (Azure finds the deployment by it); ours need not. Not orjson: it rounds long integers.
        payload: dict[str, Any] = {"body": json.loads(call.body)} if self._own_auth else {"content": call.body}
        try:
            response: httpx2.Response = await self._client.post(
                call.path or call.endpoint.removeprefix("/v1"),
                cast_to=httpx2.Response,
                options={
                    "headers": self._headers(call),
                    # The whole call is bounded by `send`; a pool time-out would burn an attempt for our own queue.
                    "timeout": httpx2.Timeout(None, connect=call.connect_timeout_s),
                    "follow_redirects": False,
                },
                **payload,
            )
        except openai.APIStatusError as error:
            return error.response
        return response

    def _headers(self, call: Call) -> dict[str, Any]:
        headers: dict[str, Any] = dict(call.headers)
        if self._own_auth:
            headers.pop("Authorization", None)
        elif "Authorization" not in headers:
            headers["Authorization"] = openai.Omit()
        return headers
