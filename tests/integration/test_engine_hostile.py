"""Field cases 13 to 16 and 25: a bad record harms only itself, and what comes out is what came in."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from confluent_kafka import Message

from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, headers_of, parsed
from tests.support.engine import Engine
from tests.support.raw import produce

pytest_plugins = ["tests.support.fixtures"]

DEEP = b'{"request_id":"deep","body":' + b'{"a":' * 150_000 + b"1" + b"}" * 150_000 + b"}"
HOSTILE: dict[str, tuple[bytes | None, bytes | None, str]] = {
    "bytes": (b"\xa2", b"\xff\xfe", "undecodable"),
    "empty": (b"empty", b"", "undecodable"),
    "tombstone with a key": (b"gone", None, "undecodable"),
    "tombstone without": (None, None, "undecodable"),
    "deep": (b"deep", DEEP, "undecodable"),
    "deep array": (b"deep-array", b'{"request_id":"deep-array","body":' + b"[" * 400_000 + b"]" * 400_000 + b"}", "undecodable"),
    "duplicate keys": (b"dup", b'{"request_id":"dup","prompt":"a","prompt":"b"}', "undecodable"),
    "beyond a double": (b"1e999", b'{"request_id":"n1","body":{"messages":[],"temperature":1e999}}', "undecodable"),
    "NaN": (b"nan", b'{"request_id":"n2","body":{"messages":[],"temperature":NaN}}', "undecodable"),
    "lone surrogate": (b"sur", b'{"request_id":"sur","prompt":"\\ud800"}', "undecodable"),
    "huge integer": (b"int", b'{"request_id":"int","body":{"messages":[],"seed":' + b"9" * 5_000 + b"}}", "undecodable"),
    "no object": (b"list", b"[1,2]", "undecodable"),
    "no id": (None, b'{"prompt":"hello"}', "invalid_request"),
    "id of another alphabet": (b"id", '{"request_id":"ä","prompt":"x"}'.encode(), "invalid_request"),
    "two bodies": (b"both", b'{"request_id":"both","prompt":"x","body":{}}', "invalid_request"),
    "streaming": (b"stream", b'{"request_id":"stream","body":{"messages":[],"stream":true}}', "invalid_request"),
    "naive time": (b"naive", b'{"request_id":"naive","prompt":"x","next_retry_at":"2027-01-31T12:00:00"}', "invalid_request"),
    "naive creation": (b"naive2", b'{"request_id":"naive2","prompt":"x","created_at":"2027-01-31T12:00:00"}', "invalid_request"),
    "a time that is none": (b"time", b'{"request_id":"time","prompt":"x","next_retry_at":{}}', "invalid_request"),
}
HEADERS = [("binary", b"\x00\xff"), ("twice", b"1"), ("twice", b"2"), ("null", None), ("", b"nameless"), ("ümlaut", b"x")]


def _foreign(message: Message) -> list[Any]:
    return [h for h in message.headers() or [] if not h[0].startswith("headrace_")]


async def test_each_bad_record_is_one_dead_letter_with_its_bytes_intact(bench: Bench, stub: StubLLM) -> None:
    """Every kind of bad record, each between two good ones: one dead letter each, key, value and headers as sent; the good ones complete."""
    good = []
    for number, (key, value, _) in enumerate(HOSTILE.values()):
        bench.send(value, key=key, headers=HEADERS, partition=number % 2)
        good.append(f"good-{number}")
        bench.ask(good[-1], partition=number % 2)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        dead = await bench.until("dlq", len(HOSTILE))
        counts = await bench.finished(good)
        await bench.until_drained(["main"])
        await engine.stop()
    dead = bench.read("dlq")
    assert sorted((m.key() or b"", m.value() or b"") for m in dead) == sorted((k or b"", v or b"") for k, v, _ in HOSTILE.values())
    assert {(m.key(), m.value()) for m in dead} == {(k, v) for k, v, _ in HOSTILE.values()}, "a null stays a null, an empty value empty"
    assert all(_foreign(m) == HEADERS for m in dead)
    expected = {(k, v): error_class for k, v, error_class in HOSTILE.values()}
    assert {(m.key(), m.value()): headers_of(m)["headrace_error_class"] for m in dead} == expected
    assert all(counts[request_id, "completed"] == 1 for request_id in good)
    assert stub.calls == dict.fromkeys(good, 1)
    failed = [r for r in map(parsed, bench.read("results")) if r["status"] == "failed"]
    assert len(failed) == len(HOSTILE), "and one notice each"


async def test_header_names_that_are_not_text_harm_nobody(bench: Bench, stub: StubLLM) -> None:
    """A header name that is not UTF-8, which this client cannot read: the record is handled, once, flagged, and its neighbours go on."""
    header = (b"\xff\xfe", b"v")
    produce(bench.kafka, bench.names.main, 0, value=b'{"request_id":"odd","prompt":"x"}', header=header)
    produce(bench.kafka, bench.names.main, 0, value=b"\xff", header=header)
    bench.ask("next", partition=0)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        await bench.finished(["odd", "next"])
        dead = await bench.until("dlq", 1)
        await bench.until_drained(["main"])
        await engine.stop()
    assert stub.calls == {"odd": 1, "next": 1}
    assert (dead[0].value(), headers_of(dead[0])["headrace_headers_unreadable"]) == (b"\xff", "1")


async def test_an_answer_that_is_no_json_never_comes_out(bench: Bench, stub: StubLLM) -> None:
    """NaN in the model's answer: called three times, then dead as invalid_response; every record that comes out is strict JSON."""
    stub.set_rules([Rule.model_validate({"name": "nan", "match": {"request_ids": ["nan"]}, "action": "nan_json"})])
    bench.ask("nan", "fine")
    async with Engine(bench.settings(stub.base_url)) as engine:
        counts = await bench.finished(["nan", "fine"])
        await engine.stop()
    assert counts == {("nan", "failed"): 1, ("fine", "completed"): 1}
    assert stub.calls == {"nan": 3, "fine": 1}
    assert all(orjson.loads(m.value() or b"") for m in bench.read("results"))
    assert headers_of(bench.read("dlq")[0])["headrace_error_class"] == "invalid_response"


@pytest.mark.parametrize(
    "written", ["2020-10-25T02:30:00+05:30", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.123456Z", 1577836800, 1577836800000, 1577836800.5]
)
async def test_times_of_a_hand_written_producer_are_utc(bench: Bench, stub: StubLLM, written: object) -> None:
    """A due time in the past, however it is written, is due now: the request is called at once."""
    bench.ask("t", next_retry_at=written, retry_count=1)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        result = (await bench.results(1))[0]
        await engine.stop()
    assert result["status"] == "completed"
    assert result["attempts"]["count"] == 2, "the producer's own count is honoured"
