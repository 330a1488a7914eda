"""What the scripts read and return, as text: keys without their prefix, arguments, answers. Pure; the layout stands in `lua/prelude.lua`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from headrace.claims import (
    RESTORED,
    Answer,
    Answered,
    Claim,
    Conflict,
    Copy,
    DoneMark,
    Granted,
    Held,
    Lifetimes,
    MarkState,
    State,
    Taken,
    Token,
    UnknownReplay,
    Unreadable,
    Wait,
)  # fmt: skip
from headrace.envelope import Position
from headrace.outcome import DuplicateOf

Arg = str | bytes
Call = tuple[list[str], list[Arg]]
_LETTERS: dict[MarkState, str] = {"waiting": "w", "dead": "d", "done": "s", "forget": "x"}
_STATES: dict[str, State] = {"c": "claimed", "a": "answered", "w": "waiting", "d": "dead", "s": "done"}
_TAKEN: dict[str, DuplicateOf] = {"w": "waiting", "d": "dead", "s": "completed"}
_GRANTED = Granted()
_PLAIN = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def claim_key(request_id: str) -> str:
    return "claim:" + request_id


def replay_key(replay_id: str) -> str:
    """A replay id comes from a header, so anything but a plain name is hashed."""
    plain = _PLAIN.fullmatch(replay_id)
    return "replay:" + (replay_id if plain else "=" + hashlib.sha256(replay_id.encode("utf-8", "replace")).hexdigest())


def tail(claim: Claim) -> str:
    """The part of the value that names its holder."""
    topic, partition, offset = claim.position  # Kafka allows no separator in a topic's name
    here = f"{topic}/{partition}/{offset}"
    origin = here if claim.origin == claim.position else _plain(claim.origin)
    token = claim.token
    return f"{here}|{origin}|{claim.hop}|{token.incarnation}/{token.epoch}|{_escaped(claim.fingerprint)}|"


def claim_call(batch: Sequence[Claim], lifetimes: Lifetimes) -> Call:
    keys = [*(claim_key(claim.request_id) for claim in batch), "closed"]
    args: list[Arg] = [str(len(batch)), str(lifetimes.claim_ms), str(lifetimes.live_ms), *map(tail, batch)]
    for number, claim in enumerate(batch, start=1):
        if claim.replay_id is not None:
            keys.append(replay_key(claim.replay_id))
            args += (str(number), str(len(keys) + 1), "1" if claim.strict else "0")
    return keys, args


def mark_call(batch: Sequence[tuple[Claim, MarkState]], lifetimes: Lifetimes) -> Call:
    lives: list[Arg] = [str(lifetimes.of(state)) for state in ("waiting", "dead", "done")]
    return [claim_key(claim.request_id) for claim, _ in batch], lives + [_LETTERS[state] + tail(claim) for claim, state in batch]


def hand_over_call(batch: Sequence[tuple[Claim, bytes]], lifetimes: Lifetimes) -> Call:
    args: list[Arg] = [str(lifetimes.claim_ms), str(lifetimes.live_ms)]
    for claim, payload in batch:
        args += (tail(claim), payload)
    return [claim_key(claim.request_id) for claim, _ in batch], args


def renew_call(batch: Sequence[Claim], live_ms: int) -> Call:
    return [claim_key(claim.request_id) for claim in batch], [str(live_ms), *map(tail, batch)]


def reassert_call(batch: Sequence[Claim], lifetimes: Lifetimes) -> Call:
    return [claim_key(claim.request_id) for claim in batch], [str(lifetimes.claim_ms), str(lifetimes.live_ms), *map(tail, batch)]


def restore_call(batch: Sequence[DoneMark], lifetimes: Lifetimes, now_ms: int) -> Call:
    """A mark lives no longer than its result, whose time has begun already."""
    args: list[Arg] = []
    whole_ms, restored = lifetimes.of("done"), str(RESTORED)
    for done in batch:
        origin = _plain(done.origin)
        since_ms = min(max(0, done.at_ms), now_ms)
        args += (str(max(1, since_ms + whole_ms - now_ms)), f"{since_ms:013d}|{origin}|{origin}|0|{restored}|{_escaped(done.fingerprint)}|")
    return [claim_key(done.request_id) for done in batch], args


def void_call(batch: Sequence[tuple[str, Copy]]) -> Call:
    args: list[Arg] = []
    for _, copy in batch:
        args += (_plain(copy.position), str(copy.token))
    return [claim_key(request_id) for request_id, _ in batch], args


def answer(reply: bytes) -> Answer:
    """The answer in a reply of claim.lua."""
    if reply == b"G":
        return _GRANTED
    kind, rest = reply[:1], reply[1:]
    match kind:
        case b"O":
            return Granted(taken_over=True)
        case b"A":
            return Answered(rest)
        case b"W":
            return Wait()
        case b"U":
            return UnknownReplay()
        case b"X":
            return Unreadable()
        case b"C":
            return Conflict(int(rest))
        case b"T":
            return Taken(_TAKEN[rest[:1].decode()], int(rest[1:]))
        case b"P":
            position, token = rest[14:].decode().split("|")
            return Copy(_position(position), Token.parse(token), rest[:1] == b"1", int(rest[1:14]))
    raise ValueError(f"claim.lua answered {kind!r}")


def pauses(fields: Mapping[bytes, bytes], now_ms: int) -> dict[str, str]:
    """The pauses that have not ended, by target. A field that another version wrote is left out."""
    found: dict[str, str] = {}
    for key, text in fields.items():
        try:
            if int(text[:13]) > now_ms:
                found[key.decode()] = text[14:].decode()
        except ValueError:
            continue
    return found


def held(value: bytes) -> Held:
    """What a stored value says."""
    state, live, since, position, origin, hop, token, fingerprint, payload = value.split(b"|", 8)
    return Held(
        _STATES[state.decode()], _position(position.decode()), _position(origin.decode()), int(hop), Token.parse(token.decode()),
        fingerprint.decode().replace("%7C", "|").replace("%25", "%"), int(live), int(since), payload,
    )  # fmt: skip


def _escaped(text: str) -> str:
    """An origin comes from a header, and may hold the separator, or half a surrogate pair."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("%", "%25").replace("|", "%7C") if "|" in text or "%" in text else text


def _plain(position: Position) -> str:
    return _escaped(str(position))


def _position(text: str) -> Position:
    return Position.parse(text.replace("%7C", "|").replace("%25", "%"))
