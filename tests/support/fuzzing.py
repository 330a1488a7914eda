"""Structured mutation of valid bytes, for a stated time: seeded, so that what is found can be found again.

HEADRACE_FUZZ_S is that time for each target (1.5), HEADRACE_FUZZ_SEED the seed (1).
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_log = logging.getLogger("headrace.fuzz")  # --log-cli-level=info shows it
SECONDS = float(os.environ.get("HEADRACE_FUZZ_S", "1.5"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
LONGEST = 1 << 16
CPU_S = 3.0  # of one execution's own time, however busy the machine; all of them take a few milliseconds at most

TOKENS = (
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 20, b"9" * 400, b"1e308", b"0.1e-400", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00",
    b'"\\ud800"', b'"\\udfff\\ud800"', b"\\u0000", b'"request_id"', b'"body"', b'"prompt"', b"[", b"]", b"{", b"}", b"[" * 300, b'{"a":' * 300, b",", b":",
    b'"', b"'", b"\\", b"\n", b"|", b"%7C", b"/", b".", "ü".encode(), "\u202e".encode(), "\ufeff".encode(), b"\xed\xa0\x80", b"2027-01-31T12:00:00",
)  # fmt: skip


@dataclass(slots=True)
class Fuzzed:
    """How many executions there were, and the slowest of them in its own processor time."""

    executions: int = 0
    slowest_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus after one to six mutations: bytes flipped, dropped, doubled, joined with another's, tokens put in."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 2, 5, 20, 200)))
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:to]
            case 2:
                data[at:at] = rng.choice(TOKENS)
            case 3:
                data[at:to] = rng.choice(TOKENS)
            case 4:
                data[at:at] = data[at:to] * rng.choice((1, 2, 50))
            case 5:
                other = rng.choice(corpus)
                begin = rng.randrange(len(other) + 1)
                data[at:to] = other[begin : begin + rng.choice((1, 10, 100, 1000))]
            case 6:
                del data[at:]
            case _:
                data[at:to] = rng.randbytes(rng.choice((1, 4, 16)))
    return bytes(data[:LONGEST])


def fuzz(target: Callable[[bytes], str], corpus: Sequence[bytes], *, seconds: float = SECONDS, seed: int = SEED) -> Fuzzed:
    """Run `target` on mutations of the corpus for so long; what it returns is counted, what it raises names the input.

    What gives an outcome not seen before joins the corpus. A single run that takes longer than CPU_S of processor time fails.
    """
    rng = random.Random(seed)
    pool = list(corpus)
    found = Fuzzed()
    until = time.monotonic() + seconds
    while found.executions < len(corpus) or time.monotonic() < until:
        data = pool[found.executions] if found.executions < len(corpus) else mutated(rng, pool)
        began = time.thread_time()
        try:
            outcome = target(data)
        except Exception as error:
            raise AssertionError(f"seed {seed}, execution {found.executions}: {error!r} for {data[:2_000]!r}") from error
        took = time.thread_time() - began
        assert took < CPU_S, f"seed {seed}, execution {found.executions}: {took:.1f} s for {len(data)} bytes {data[:200]!r}"
        found.slowest_s = max(found.slowest_s, took)
        found.executions += 1
        if outcome not in found.outcomes and len(data) < 8_192:
            pool.append(data)
        found.outcomes[outcome] = found.outcomes.get(outcome, 0) + 1
    _log.info(
        "%d executions in %g s, the slowest %.1f ms, %d outcomes", found.executions, seconds, found.slowest_s * 1000, len(found.outcomes)
    )
    return found
