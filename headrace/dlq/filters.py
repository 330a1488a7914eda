"""Which dead letters are meant. Conditions are joined by and; times are epoch milliseconds."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime

from headrace.dlq.letter import UNKNOWN, Letter
from headrace.envelope import Position
from headrace.errors import ErrorClass

CLASSES = frozenset({*(member.value for member in ErrorClass), UNKNOWN})

_SPAN = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Filters:
    """What a dead letter must be to match; an empty condition matches everything.

    `since_ms` is inclusive, `until_ms` exclusive, both of the time of death. `text` is looked for, without regard to
    ASCII case, in key, value and error message. `after` leaves out what stands at or before a position of its partition.
    """

    classes: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    request_id: str | None = None
    agent_id: str | None = None
    channel: str | None = None
    provider: str | None = None
    model: str | None = None
    text: str | None = None
    position: Position | None = None
    after: tuple[Position, ...] = ()

    def match(self, letter: Letter) -> bool:
        """Whether a letter is meant."""
        return (
            (not self.classes or letter.error_class in self.classes)
            and (self.since_ms is None or letter.dead_at_ms >= self.since_ms)
            and (self.until_ms is None or letter.dead_at_ms < self.until_ms)
            and self._named(letter)
            and self._placed(letter.position)
            and (self.text is None or _holds(letter, self.text))
        )

    def _named(self, letter: Letter) -> bool:
        return (
            (self.request_id is None or letter.request_id == self.request_id or letter.record.key == self.request_id.encode())
            and (self.agent_id is None or letter.agent_id == self.agent_id)
            and (self.channel is None or letter.channel == self.channel)
            and (self.provider is None or letter.provider == self.provider)
            and (self.model is None or letter.model == self.model)
        )

    def _placed(self, position: Position) -> bool:
        if self.position is not None and position != self.position:
            return False
        return all(position[:2] != seen[:2] or position.offset > seen.offset for seen in self.after)


def _holds(letter: Letter, text: str) -> bool:
    """JSON may spell a letter as it is or as an escape: both are looked for."""
    needles = {text.encode("utf-8", "replace").lower(), json.dumps(text)[1:-1].encode().lower()}
    message = (letter.message or "").encode()
    places = [part.lower() for part in (letter.record.value, letter.record.key, message) if part]
    return any(needle in place for needle in needles for place in places)


def parse_moment(text: str, now_ms: int, *, ahead: bool = False) -> int:
    """Epoch milliseconds of an RFC 3339 time, or of a span such as `2h`: that long ago, or `ahead` of now.

    Raises ValueError, also for a time without a zone: it would mean another hour on another machine.
    """
    span = _SPAN.fullmatch(text)
    if span:
        length_ms = int(span[1]) * _UNIT_MS[span[2]]
        return now_ms + length_ms if ahead else now_ms - length_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 2027-01-31T12:00:00Z, or a span such as 90s, 30m, 2h, 7d") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write 2027-01-31T12:00:00Z")
    return int(moment.timestamp() * 1000)
