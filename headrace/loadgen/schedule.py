"""When each record is due, in seconds from the start: decided by rate and seed alone, so that what is slow cannot slow it. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal

Arrivals = Literal["poisson", "constant"]


def arrivals(kind: Arrivals, rate: float, seed: int, *, duration_s: float | None = None, count: int | None = None) -> Iterator[float]:
    """Due times, growing; they end with `duration_s` or after `count`, whichever comes first. `rate` is records a second."""
    due = _poisson(rate, random.Random(f"arrivals {seed}")) if kind == "poisson" else (n / rate for n in itertools.count())  # noqa: S311  no secret
    if duration_s is not None:
        due = itertools.takewhile(lambda at_s: at_s < duration_s, due)
    return itertools.islice(due, count)


def _poisson(rate: float, chance: random.Random) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate)
        yield at_s
