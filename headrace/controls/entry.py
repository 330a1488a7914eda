"""One order of an operator, and its form in Redis: a field of one hash, `<until>|<ids left>|<since>|<JSON>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import orjson

from headrace.envelope import Position, Request

Kind = Literal["pause", "cancel", "ids"]
NAME_CHARS = 256  # as long as an agent's or a channel's name in a request may be
WHO_CHARS = 64
WHY_CHARS = 200
ENTRIES = 1_000  # in one fleet: more than that are a program's doing, and every worker keeps all of them in memory
FOR_EVER_MS = 9_999_999_999_999
NO_REASON = "no reason given"
_VALUE = re.compile(r"(\d{13})\|(\d{1,15})\|(\d{13})\|(.*)", re.DOTALL)
_UNPLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Scope(NamedTuple):
    """What an order is about: everything that is named must fit. Nothing named is everything."""

    provider: str | None = None
    model: str | None = None
    agent: str | None = None
    channel: str | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        named = [f"{name.removesuffix('_id')} {value}" for name, value in self._asdict().items() if value is not None]
        return ", ".join(named) or "everything"

    @property
    def of_requests(self) -> bool:
        """Whether it names what a request says of itself, rather than whom it would call."""
        return not (self.agent is None and self.channel is None and self.request_id is None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A pause of a scope; the cancellation of what a scope had sent `before` an offset of each partition (`topic/partition`); or
    one command's cancelled ids, by its `name`: how many there still are. Times are epoch ms; `until_ms` None is for ever.
    """

    kind: Kind
    scope: Scope
    who: str
    why: str
    since_ms: int
    until_ms: int | None = None
    before: Mapping[str, int] = field(default_factory=dict)
    name: str = ""
    left: int = 0

    @property
    def key(self) -> str:
        """Its place: a later order about the same replaces it."""
        return f"ids:{self.name}" if self.kind == "ids" else f"{self.kind}:{orjson.dumps(list(self.scope)).decode()}"

    def stands(self, now_ms: int) -> bool:
        """Whether it has not run out."""
        return self.until_ms is None or now_ms < self.until_ms

    def meant(self, origin: Position) -> bool:
        """Whether a request that began there had been sent before the order was given."""
        return origin.offset < self.before.get(f"{origin.topic}/{origin.partition}", 0)

    def dump(self) -> str:
        """As Redis keeps it."""
        said = [self.kind, list(self.scope), self.who, self.why, dict(self.before), self.name]
        return f"{self.until_ms or FOR_EVER_MS:013d}|{self.left}|{self.since_ms:013d}|{orjson.dumps(said).decode()}"


def parse(text: str) -> Entry | None:
    """What `dump` wrote; None for what another version did."""
    found = _VALUE.fullmatch(text)
    if found is None:
        return None
    until_ms = int(found[1])
    try:
        kind, scope, who, why, before, name = orjson.loads(found[4])
        if kind not in ("pause", "cancel", "ids"):
            return None
        return Entry(
            kind, Scope(*(None if one is None else str(one) for one in scope)), plain(str(who), WHO_CHARS), plain(str(why), WHY_CHARS),
            int(found[3]), None if until_ms == FOR_EVER_MS else until_ms, {str(at): int(offset) for at, offset in before.items()},
            str(name), int(found[2]),
        )  # fmt: skip
    except (ValueError, TypeError, AttributeError):
        return None


def plain(text: str, most: int) -> str:
    """One line of at most `most` visible characters."""
    return _UNPLAIN.sub("?", " ".join(text.split()))[:most]


def asked_model(request: Request, default: str) -> str:
    """The model a request asks for; a chain may call another."""
    model = request.body.get("model")
    return model if isinstance(model, str) and model else default
