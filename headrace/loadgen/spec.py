"""How the command line writes distributions and weights, read into what can be drawn from. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.document import nearest
from headrace.errors import ConfigError

_SIZE_HELP = "write a number of bytes, uniform:LOW,HIGH or lognormal:MEDIAN,SIGMA"


@dataclass(frozen=True, slots=True)
class Size:
    """A distribution of bytes: `fixed` (first), `uniform` (first to second), `lognormal` (median first, sigma second)."""

    kind: Literal["fixed", "uniform", "lognormal"]
    first: float
    second: float = 0.0

    def draw(self, chance: random.Random) -> int:
        if self.kind == "uniform":
            return chance.randint(int(self.first), int(self.second))
        if self.kind == "lognormal":
            return max(1, int(chance.lognormvariate(math.log(self.first), self.second)))
        return int(self.first)

    @classmethod
    def parse(cls, text: str) -> Size:
        """Raises ConfigError."""
        kind, colon, numbers = text.partition(":")
        try:
            given = [float(number) for number in (numbers if colon else text).split(",")]
        except ValueError:
            given = []
        if not colon and len(given) == 1 and given[0] >= 1:
            return cls("fixed", given[0])
        if kind == "uniform" and len(given) == 2 and 1 <= given[0] <= given[1] < math.inf:
            return cls("uniform", given[0], given[1])
        if kind == "lognormal" and len(given) == 2 and 1 <= given[0] < math.inf and 0 <= given[1] <= 5:
            return cls("lognormal", given[0], given[1])
        raise ConfigError([f"--prompt-bytes: {text[:60]!r} is none; {_SIZE_HELP}"])


@dataclass(frozen=True, slots=True)
class Weighted:
    """Names, each as likely as its weight says."""

    names: Sequence[str]
    weights: Sequence[float]

    def draw(self, chance: random.Random) -> str:
        return self.names[0] if len(self.names) == 1 else chance.choices(self.names, self.weights)[0]

    @classmethod
    def parse(cls, text: str, option: str, known: Sequence[str] = ()) -> Weighted:
        """From `name=weight,…`. Raises ConfigError."""
        weights = _pairs(text, option, known)
        if not weights or sum(weights.values()) <= 0:
            raise ConfigError([f"{option}: gives no weight above 0; write for example a=3,b=1"])
        return cls(tuple(weights), tuple(weights.values()))


def shares(text: str, option: str, known: Sequence[str]) -> dict[str, float]:
    """`name=share,…`, 1 in sum at most. Raises ConfigError."""
    found = {name: share for name, share in _pairs(text, option, known).items() if share > 0}
    if sum(found.values()) > 1:
        raise ConfigError([f"{option}: the shares are {sum(found.values()):g} in sum; 1 is everything"])
    return found


def zipf(count: int, skew: float) -> list[float]:
    """Weights of `count` agents: the n-th is 1 / n^skew. Skew 0: all alike."""
    return [1 / number**skew for number in range(1, count + 1)]


def _pairs(text: str, option: str, known: Sequence[str]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        try:
            found[name] = float(number or "1")
        except ValueError:
            found[name] = math.nan
        if not 0 <= found[name] < math.inf:
            raise ConfigError([f"{option}: {part[:60]!r} has no number of 0 or more behind its `=`"])
        if known and name not in known:
            raise ConfigError([f"{option}: {name[:60]!r} is not known{nearest(name[:60], known) or '; there are ' + ', '.join(known)}"])
    return found
