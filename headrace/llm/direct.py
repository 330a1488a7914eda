"""The default transport: one long-lived aiohttp session that posts bytes. It maps no status; `errors` does."""

from __future__ import annotations

import io
from time import monotonic

import aiohttp
from yarl import URL

from headrace.envelope import ENDPOINTS
from headrace.errors import CallFailed
from headrace.llm.connector import PooledConnector
from headrace.llm.errors import classify_exception
from headrace.llm.transport import KEEPALIVE_S, MAX_BODY_BYTES, Call, Reply, out_of_time, oversized, url_of

# A pooled connection found closed before the first byte was written is no call yet: another one is taken, so
# many times. Once a byte may have left, a cut is a `connection` failure and nothing is sent again here: a POST
# may have been processed and billed (RFC 9110 §9.2.2), and retries have one owner.
_FRESH_TRIES = 3
# aiohttp rounds longer time-outs up to whole seconds; a deadline is a deadline.
_NEVER_ROUND = 1e9
# Above this aiohttp wants a file object, so that writing does not hold up the loop.
_LARGE_BODY = 1 << 20


def open_session(pool: int) -> aiohttp.ClientSession:
    """A session of `pool` connections that keeps no cookies and reads no proxies from the environment."""
    return aiohttp.ClientSession(
        connector=PooledConnector(limit=pool, keepalive_timeout=KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


class DirectTransport:
    """Posts by aiohttp: no cookies, no proxies from the environment, no redirects, no decompression asked for.

    `pool` is the number of connections: at least the calls in flight, or calls queue on their own time.
    """

    def __init__(self, base_url: str, *, pool: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._urls = {endpoint: URL(url_of(base_url, endpoint)) for endpoint in ENDPOINTS}
        self._base = base_url.rstrip("/")
        self._pool = pool
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call) -> Reply:
        if call.timeout_s <= 0:
            raise out_of_time()
        start = monotonic()
        for fresh_try in range(_FRESH_TRIES):
            try:
                return await self._post(call, start)
            except CallFailed:
                raise
            except Exception as error:  # noqa: BLE001 - the seam's contract: whatever it is, it leaves as CallFailed, classified
                if fresh_try + 1 < _FRESH_TRIES and len(call.body) < _LARGE_BODY and _unsent(error):
                    continue
                # `from None`: aiohttp's errors carry the request's headers, and so the key.
                raise CallFailed(classify_exception(error)) from None
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, call: Call, start: float) -> Reply:
        session = self._session or self._open()
        # The only timer: it covers pool, connection, headers and body, so a dripping server is cut off too.
        left_s = max(0.001, call.timeout_s - (monotonic() - start))
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=call.connect_timeout_s, ceil_threshold=_NEVER_ROUND)
        data = call.body if len(call.body) < _LARGE_BODY else io.BytesIO(call.body)
        url = self._urls[call.endpoint] if call.path is None else URL(self._base + call.path, encoded=True)
        async with session.post(url, data=data, headers=call.headers, timeout=timeout, allow_redirects=False) as response:
            body = await self._read(response)
            return Reply(response.status, response.headers, body, round((monotonic() - start) * 1000))

    def _open(self) -> aiohttp.ClientSession:
        self._session = open_session(self._pool)
        return self._session

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        limit = self._max_body_bytes
        if (response.content_length or 0) > limit:
            response.close()
            raise oversized(limit)
        chunk = await response.content.readany()
        if response.content.at_eof():
            if len(chunk) > limit:
                raise oversized(limit)
            return chunk
        chunks, size = [chunk], len(chunk)
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > limit:
                response.close()
                raise oversized(limit)
            chunks.append(chunk)
        return b"".join(chunks)


def _unsent(error: Exception) -> bool:
    """Whether aiohttp refused to write because the connection was closed already: body and headers go in one write."""
    cause = error.__cause__
    return (
        isinstance(error, aiohttp.ClientOSError)
        and error.errno is None
        and isinstance(cause, aiohttp.ClientConnectionResetError)
        and "closing transport" in str(cause)
    )
