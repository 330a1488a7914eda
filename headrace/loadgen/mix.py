"""What is sent: sizes, agents, channels, priorities and faults, drawn from a seed. Pure: the same seed and prefix give the same bytes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from headrace.loadgen.spec import Size, Weighted

FAULTS: Mapping[str, str] = {
    "bad_bytes": "bytes that are no JSON: a dead letter, undecodable",
    "wrong_schema": "a request_id without prompt or body: a dead letter, invalid_request",
    "expired": "a deadline that has passed: a dead letter, expired, never called",
    "duplicate": "a copy of one of the last thousand good ones: a notice, no call",
    "broken": "the prompt holds [broken], which the stub's scenario `trade` refuses",
}
_LATELY = 1_000
_WORDS = (
    "river",
    "wheel",
    "stone",
    "miller",
    "turns",
    "counts",
    "the",
    "a",
    "and",
    "while",
    "sacks",
    "of",
    "rye",
    "by",
    "door",
    "weir",
    "race",
)
_TEXT = " ".join(_WORDS[n * n % len(_WORDS)] for n in range(40_000))


class Planned(NamedTuple):
    """A record to be sent; `kind` is good, or the name of its fault."""

    kind: str
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class Mix:
    """`faults` are shares by name; what they leave is good. `longest` bounds the prompt's bytes. `agents` are `agent-0` and so on, by weight."""

    prefix: str
    sizes: Size
    agents: Sequence[float]
    channels: Weighted
    priorities: Weighted
    faults: Mapping[str, float]
    longest: int

    def records(self, seed: int) -> Iterator[Planned]:
        """Without end."""
        chance = random.Random(f"mix {seed}")  # noqa: S311  no secret
        lately: deque[Planned] = deque(maxlen=_LATELY)
        kinds, shares = ["good", *self.faults], [1 - sum(self.faults.values()), *self.faults.values()]
        agents = [f"agent-{number}" for number in range(len(self.agents))]
        number = 0
        while True:
            kind = chance.choices(kinds, shares)[0]
            if kind == "duplicate" and lately:
                yield chance.choice(lately)._replace(kind=kind)
                continue
            if kind == "bad_bytes":
                yield Planned(kind, None, b"\xff{" + chance.randbytes(32))
                continue
            key = f"{self.prefix}-{number:07d}"
            number += 1
            planned = Planned(kind, key.encode(), self._value(key, kind, chance, chance.choices(agents, self.agents)[0]))
            if kind in ("good", "duplicate"):
                planned = planned._replace(kind="good")
                lately.append(planned)
            yield planned

    def _value(self, key: str, kind: str, chance: random.Random, agent: str) -> bytes:
        fields = {
            "request_id": key,
            "agent_id": agent,
            "channel": self.channels.draw(chance),
            "priority": self.priorities.draw(chance),
        }
        if kind == "expired":
            fields["deadline_at"] = "2020-01-01T00:00:00Z"
        if kind != "wrong_schema":
            marker = "[broken] " if kind == "broken" else ""
            fields["prompt"] = marker + _prompt(max(1, min(self.sizes.draw(chance), self.longest) - len(marker)), chance)
        return orjson.dumps(fields)


def _prompt(size: int, chance: random.Random) -> str:
    begin = chance.randrange(len(_TEXT))
    text = _TEXT[begin : begin + size]
    return text if len(text) == size else text + _TEXT * ((size - len(text)) // len(_TEXT)) + _TEXT[: (size - len(text)) % len(_TEXT)]
