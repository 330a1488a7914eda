"""Mutations of commit metadata, of values in Redis and of what the scripts answer: the declared outcome or the declared error, nothing else."""

from __future__ import annotations

import contextlib
import random
import zlib
from types import SimpleNamespace
from typing import cast

from headrace.claims import Claim, Token
from headrace.config import TopicNames
from headrace.envelope import Attempt, Job, Position, Record, Request, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.guard.handover import UnreadableOutcome, dump_outcome, load_outcome
from headrace.offsets import METADATA_CHARS, WINDOW, Map, Sequence, Tracker, decode_map, encode_map
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Retry, Settlement
from headrace.outputs import Outputs
from headrace.settle import Settler
from headrace.store import codec
from tests.support.fuzzing import fuzz

NOW = 1_800_000_000_000
FRONTIER = 1_000
HERE = Position("llm_requests_main", 3, 77)
CALL = Attempt("timeout", 60_000, "openai")
FAILURE = Failure(
    ErrorClass.TIMEOUT, "no answer", code="slow", status_code=504, retry_after_ms=7, called=True, provider="openai", model="m"
)
ANSWER = Response(b'{"id": 1,\n "x": 1.50}', 200, "openai", "m", "q", "stop", {"total_tokens": 3})
JOB = Job(Record(*HERE, 1, b"k", b"{}", (), NOW), Trail(HERE), "r-1", "f" * 24, Request(request_id="r-1", body={}))
OUTPUTS = Outputs(TopicNames(), {})
OUTCOMES = [
    Completed(ANSWER, (CALL,), NOW, 40), Degraded(ANSWER, FAILURE, (CALL, CALL), NOW, 40), Retry(FAILURE, (CALL,), NOW + 5, 70, NOW),
    Deferred(NOW, "target shut"), Dead(FAILURE, NOW, (CALL,), 70), Dropped(FAILURE, NOW),
]  # fmt: skip


def maps() -> list[bytes]:
    """Maps of every shape: empty, one slow head, runs, the alternating pattern, a full random window."""
    rng = random.Random(7)
    patterns = [(0, 0), (5_000, 1), (WINDOW, (1 << WINDOW) - 1), (WINDOW, int("01" * (WINDOW // 2), 2)), (300, rng.getrandbits(300))]
    return [encode_map(Map(FRONTIER, FRONTIER + width, bits, Sequence("AbC_-9", 2**63))).encode() for width, bits in patterns]


def test_fuzz_map_parser() -> None:
    """Damaged metadata, also with a checksum that is right again, is no map, or one within its width that a tracker can start from."""

    def target(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        body = text.rpartition(".")[0]
        with contextlib.suppress(UnicodeEncodeError):  # a forger's checksum is of bytes he could send
            forged = decode_map(FRONTIER, f"{body}.{zlib.crc32(f'{FRONTIER}.{body}'.encode()):08x}")
            _judge_map(forged)
        found = decode_map(FRONTIER, text)
        _judge_map(found)
        return "map" if found else "none"

    assert fuzz(target, maps()).outcomes.keys() == {"map", "none"}


def _judge_map(found: Map | None) -> None:
    if found is None:
        return
    assert found.end - found.frontier <= WINDOW
    assert not found.unresolved >> (found.end - found.frontier)
    assert all(found.frontier <= offset < found.end for offset in found.offsets())
    again = encode_map(found)
    assert len(again) <= METADATA_CHARS
    assert decode_map(FRONTIER, again) == found
    Tracker(FRONTIER, found).committable([], found.sequence)


def test_fuzz_hand_over() -> None:
    """A damaged hand-over is UnreadableOutcome, or an outcome that can be handed over again and settled, if only as a dead letter that says so."""

    def target(data: bytes) -> str:
        try:
            outcome = load_outcome(data)
        except UnreadableOutcome:
            return "unreadable"
        assert load_outcome(dump_outcome(outcome)) == outcome
        prepared = Settler._prepared(cast("Settler", SimpleNamespace(_outputs=OUTPUTS)), Settlement(JOB, outcome))
        assert prepared.outputs or isinstance(outcome, Deferred)
        return type(outcome).__name__

    found = fuzz(target, [dump_outcome(outcome) for outcome in OUTCOMES])
    assert found.outcomes.keys() >= {"unreadable", *(type(outcome).__name__ for outcome in OUTCOMES)}


def test_fuzz_what_redis_answers() -> None:
    """A script's answer, or a value under a claim's key, is one of the known ones, or ValueError or KeyError: never a wrong reading by another error."""
    claim = Claim("r-1", HERE, Position("to|p%ic", 1, 2), 3, Token("abc", 7), "f" * 24)
    tail = codec.tail(claim).encode()
    values = [b"a|1800000000000|1800000000000|" + tail + b'{"v":1}\n', b"s|0000000000000|1800000000000|" + tail]
    answers = [
        b"G",
        b"O",
        b"W",
        b"U",
        b"X",
        b"C1800000000000",
        b"Ts1800000000000",
        b"A{}\n",
        b"P11800000000000llm_requests_main/3/77|abc/7",
    ]

    def target(data: bytes) -> str:
        for read in (codec.answer, codec.held):
            with contextlib.suppress(ValueError, KeyError):
                return type(read(data)).__name__
        return "refused"

    known = {type(codec.answer(one)).__name__ for one in answers} | {"Held", "refused"}
    assert fuzz(target, [*answers, *values]).outcomes.keys() == known


def test_whatever_is_in_a_record_a_claim_of_it_reads_back() -> None:
    """Origins and fingerprints with the separator, an escape or half a surrogate pair in them come back as one field each."""
    for topic in ("plain", "a|b", "a%7Cb", "a%b", "ä|%", "x\ud800"):
        origin = Position(topic, 1, 2)
        claim = Claim("r-1", HERE, origin, 3, Token("abc", 7), "f|%")
        held = codec.held(b"c|1800000000000|1800000000000|" + codec.tail(claim).encode())
        assert (held.position, held.hop, held.token, held.fingerprint) == (HERE, 3, Token("abc", 7), "f|%")
        assert held.origin == origin or topic == "x\ud800"
