"""`ctx.once` at work: a step of a handler begun in the store, run, and its value kept. The rules are `once`'s, who keeps it `store`'s."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar

import orjson
import tenacity

from headrace.claims import Claim
from headrace.errors import Dead, HeadraceError, NotHeld, OnceUnknown, StoreLost, StoreUnavailable
from headrace.once import MOST_KEYS, Begun, Full, Known, Lost, Run, Unknown, dump, field_of

Step = Callable[[], Any]
_T = TypeVar("_T")
OnUnknown = Literal["dead", "again"] | Step
PATIENCE_S = 30.0  # for a Redis that is away, and never more than half of the time left: the rest is for giving the record back

REMEMBERED = 1_000
_raised: dict[tuple[str, str], str] = {}  # what a step raised last, by request and key: the lane that runs it again may be another


class StepStore(Protocol):
    """Keeps steps; see `store.steps`."""

    async def begin(self, claim: Claim, key: str, nonce: str, *, again: bool) -> Begun: ...
    async def end(self, claim: Claim, key: str, nonce: str, value: bytes | None) -> bool: ...


class Effects:
    """The steps of one attempt, under its record's claim. `left_s` is what is left of its time, in seconds."""

    def __init__(self, store: StepStore, claim: Claim, left_s: Callable[[], float]) -> None:
        self._store = store
        self._claim = claim
        self._left_s = left_s
        self._values: dict[str, bytes] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def once(self, key: str, step: Step, on_unknown: OnUnknown) -> Any:
        """See `Context.once`."""
        field_of(key)
        if not callable(step):
            raise TypeError("ctx.once(key, fn) needs a function without arguments; e.g. lambda: charge(order)")
        if not (callable(on_unknown) or on_unknown in ("dead", "again")):
            raise ValueError("ctx.once(on_unknown=…) is 'dead', 'again', or a function that finds out")
        async with self._locks[key]:
            if key not in self._values:
                self._values[key] = await self._value(key, step, on_unknown)
        return orjson.loads(self._values[key])

    async def _value(self, key: str, step: Step, on_unknown: OnUnknown) -> bytes:
        nonce = secrets.token_hex(8)
        begun = await self._asked(lambda: self._store.begin(self._claim, key, nonce, again=on_unknown != "dead"))
        match begun:
            case Known():
                return begun.value
            case Run():
                return await self._run(key, nonce, on_unknown if begun.again and callable(on_unknown) else step)
            case Unknown():
                raise OnceUnknown(_unknown(key, begun) + _last_raised(self._claim.request_id, key))
            case Full():
                raise Dead(f"{_named(key)}: a request has at most {MOST_KEYS} steps", code="once_full")
            case Lost():
                raise NotHeld("the request's claim is not this worker's")

    async def _run(self, key: str, nonce: str, step: Step) -> bytes:
        """What it raises decides: an error of Headrace's own says that it did not happen, any other that nobody knows."""
        try:
            value = step()
            if inspect.isawaitable(value):
                value = await value
        except OnceUnknown:
            raise
        except HeadraceError:
            await self._asked(lambda: self._store.end(self._claim, key, nonce, None))
            raise
        except Exception as error:
            _remember(self._claim.request_id, key, error)
            raise
        try:
            text = dump(value)
        except ValueError as error:
            raise Dead(f"{_named(key)} has run, but {error}", code="once_value") from None
        # It has happened: a cancellation must not keep that from being written down.
        kept = asyncio.ensure_future(self._asked(lambda: self._store.end(self._claim, key, nonce, text)))
        if not await asyncio.shield(kept):
            raise NotHeld("another has begun this step since")
        return text

    async def _asked(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """The store's answer. Waits for a Redis that is away, for PATIENCE_S or half of the time left; raises what it raised then."""
        patience_s = min(PATIENCE_S, self._left_s() / 2)
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((StoreUnavailable, StoreLost)),
            wait=tenacity.wait_random_exponential(0.1, max=1.0),
            stop=tenacity.stop_before_delay(patience_s),
            reraise=True,
        ):
            with attempt:
                return await ask()
        raise AssertionError("tenacity returns or raises")


def _unknown(key: str, begun: Unknown) -> str:
    if begun.since_ms is None:
        return f"{_named(key)}: what is kept of it was written by another version of Headrace"
    since = datetime.fromtimestamp(begun.since_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{_named(key)} was begun at {since} and never reported back: it may have happened; find out before it is done again"


def _remember(request_id: str, key: str, error: Exception) -> None:
    """The type alone: a text may quote the request. The oldest are forgotten."""
    for oldest in list(_raised)[: max(0, len(_raised) + 1 - REMEMBERED)]:
        _raised.pop(oldest, None)
    _raised[request_id, key] = type(error).__name__[:64]


def _last_raised(request_id: str, key: str) -> str:
    kind = _raised.get((request_id, key))
    return "" if kind is None else f"; the step raised {kind} last time"


def _named(key: str) -> str:
    """Without quotation marks: what stands in them is masked in a dead letter."""
    return f"ctx.once({field_of(key)})"
