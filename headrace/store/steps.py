"""The steps of handlers that run at most once, in Redis: one hash for each request, `{namespace}:once:<request id>`. The rules are `once`'s."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.claims import Claim
from headrace.once import MOST_KEYS, Begun, Full, Known, Lost, Run, Unknown, field_of
from headrace.store import codec

_Run = Callable[[str, Sequence[str], Sequence[codec.Arg]], Awaitable[list[Any]]]
_PLAIN: dict[bytes, Begun] = {b"b": Run(), b"g": Run(again=True), b"N": Lost(), b"F": Full(), b"X": Unknown(None)}


class Steps:
    """`run` runs a script by its name; a request's steps are kept for `life_ms` after the last of them."""

    def __init__(self, run: _Run, life_ms: int) -> None:
        self._run = run
        self._life = str(life_ms)

    async def begin(self, claim: Claim, key: str, nonce: str, *, again: bool) -> Begun:
        """Whether the holder of `claim` may run a step; `again`: also one whose end is unknown. Written down before it is answered."""
        args = (self._life, codec.tail(claim), field_of(key), nonce, "1" if again else "", str(MOST_KEYS))
        (reply,) = await self._run("once_begin", _keys(claim), args)
        return _PLAIN.get(reply) or (Known(reply[1:]) if reply[:1] == b"D" else Unknown(int(reply[1:])))

    async def end(self, claim: Claim, key: str, nonce: str, value: bytes | None) -> bool:
        """Keep a step's value (None: it did not happen); False where another has begun it since."""
        word = b"x" if value is None else b"d" + value
        (told,) = await self._run("once_end", _keys(claim), (self._life, codec.tail(claim), field_of(key), nonce, word))
        return bool(told)


def _keys(claim: Claim) -> tuple[str, str, str]:
    return "closed", codec.claim_key(claim.request_id), "once:" + claim.request_id
