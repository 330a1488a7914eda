"""Field cases 13 to 16, 18, 21 and 25 on a real broker: what producers and providers send, and what must come of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Message

from headrace.envelope import Request, Response
from headrace.handler import Context
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, headers_of, parsed, raw_headers
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.whole import everything

pytest_plugins = ["tests.support.fixtures"]

BINARY = [("binary", b"\x00\xff\xfe"), ("null", None), ("", b"nameless")]
CHAT = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}


def rule(name: str, action: object) -> Rule:
    """A rule for one request id."""
    return Rule.model_validate({"name": name, "match": {"request_ids": [name]}, "action": action})


def strict(message: Message) -> Any:
    """A value as the strictest parser takes it. Raises ValueError for NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(message.value() or b"", parse_constant=refuse)


def foreign(message: Message) -> list[Any]:
    """The producer's headers."""
    return [h for h in raw_headers(message) if not h[0].startswith("headrace_")]


async def test_field_13_undecodable_bytes(bench: Bench, stub: StubLLM) -> None:
    """Bytes FF FE under key A2 with a binary header, UTF-16, a byte order mark, an empty value: dead once each, whole, and not read again by the next worker."""
    values = [b"\xff\xfe", '{"request_id":"x","prompt":"y"}'.encode("utf-16"), b'\xef\xbb\xbf{"request_id":"x","prompt":"y"}', b""]
    for value in values:
        bench.send(value, key=b"\xa2", headers=BINARY, partition=0)
    bench.ask("after", partition=0)
    for _ in range(2):
        async with Engine(bench.settings(stub.base_url)) as engine:
            await bench.finished(["after"])
            await bench.until("dlq", len(values))
            await bench.until_drained()
            await engine.stop()
    dead = await everything(bench, "dlq")
    assert [(m.key(), m.value()) for m in dead] == [(b"\xa2", value) for value in values]
    assert all(foreign(m) == BINARY for m in dead)
    assert {headers_of(m)["headrace_error_class"] for m in dead} == {"undecodable"}
    assert stub.calls == {"after": 1}


async def test_field_14_tombstones(bench: Bench, stub: StubLLM, tmp_path: Path) -> None:
    """A null value, with a key and without: dead once; sent back once more it is dead once more, still null, and its neighbours go on."""
    for key in (b"k", None):
        bench.send(None, key=key, headers=BINARY, partition=0)
    bench.ask("after", partition=0)
    async with Engine(bench.settings(stub.base_url)) as engine:
        await bench.finished(["after"])
        await bench.until("dlq", 2)
        done = await headrace(environment(bench, tmp_path), "dlq", "replay", "--class", "undecodable", "--execute")
        assert done.returncode == 0, done.stderr
        await bench.until("dlq", 4)
        await bench.until_drained()
        await engine.stop()
    dead = await everything(bench, "dlq")
    assert [m.value() for m in dead] == [None] * 4
    assert sorted(m.key() or b"" for m in dead) == [b"", b"", b"k", b"k"]
    assert all(foreign(m) == BINARY for m in dead)
    assert [headers_of(m)["headrace_hop"] for m in dead] == ["0", "0", "1", "1"]


async def halves(request: Request, ctx: Context) -> Response:
    """A handler that makes half a surrogate pair by itself."""
    return await ctx.llm.call(request.model_copy(update={"body": {**request.body, "user": "\ud800"}}))


async def test_field_15_lone_surrogates(bench: Bench, stub: StubLLM) -> None:
    """Half a surrogate pair anywhere in a request, as escape or as bytes, or made by a handler: dead at once, never called, never retried."""
    halved = {
        "prompt": b'{"request_id":"%s","prompt":"\\ud800"}',
        "low": b'{"request_id":"%s","prompt":"x\\udfffy"}',
        "turned": b'{"request_id":"%s","prompt":"\\udfff\\ud800"}',
        "bytes": b'{"request_id":"%s","prompt":"\xed\xa0\x80"}',
        "name": b'{"request_id":"%s","body":{"\\ud800":1,"messages":[]}}',
        "tool": b'{"request_id":"%s","body":{"messages":[{"role":"user","content":"x","tool_calls":[{"function":{"arguments":"\\ud834"}}]}]}}',
        "metadata": b'{"request_id":"%s","prompt":"x","metadata":{"k":"\\udead"}}',
    }
    for name, value in halved.items():
        bench.send(value % name.encode(), partition=0)
    bench.send(b'{"request_id":"pair","prompt":"\\ud834\\udd1e"}', partition=0)
    bench.flush()
    async with Engine(bench.settings(stub.base_url)) as engine:
        await bench.finished(["pair"])
        dead = await bench.until("dlq", len(halved))
        await bench.until_drained()
        await engine.stop()
    assert {m.value() for m in dead} == {value % name.encode() for name, value in halved.items()}
    assert {headers_of(m)["headrace_error_class"] for m in dead} == {"undecodable"}
    bench.ask("handler")
    async with Engine(bench.settings(stub.base_url, handler="tests.integration.test_field_hostile:halves")) as engine:
        await bench.finished(["handler"])
        await engine.stop()
    dead = await bench.until("dlq", len(halved) + 1)
    assert headers_of(dead[-1])["headrace_error_class"] == "invalid_request"
    assert stub.calls == {"pair": 1}
    assert await everything(bench, "retry") == []


async def test_field_16_numbers_that_are_none(bench: Bench, stub: StubLLM) -> None:
    """NaN, Infinity and 1e999 in a request or in the model's answer: never sent, never written; what comes out is strict JSON."""
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400):
        bench.send(b'{"request_id":"in-%s","body":{"messages":[],"temperature":%s}}' % (number[:9].encode(), number.encode()))
    answer = '{{"choices":[{}],"usage":{{"total_tokens":{}}}}}'
    usages = {"nan": "NaN", "inf": "-Infinity", "huge": "1e999", "digits": "9" * 400}
    nested = answer.format(json.dumps(CHAT), '{"a":' * 300 + "1" + "}" * 300)
    answers = {name: answer.format(json.dumps(CHAT), number) for name, number in usages.items()} | {"nested": nested}
    stub.set_rules([rule(name, {"body": body}) for name, body in answers.items()] + [rule("bent", "nan_json")])
    bench.ask(*answers, "bent")
    async with Engine(bench.settings(stub.base_url)) as engine:
        counts = await bench.finished([*answers, "bent"])
        await bench.until("dlq", 6 + len(usages) + 1)
        await bench.until_drained()
        await engine.stop()
    written = [*await everything(bench, "results"), *await everything(bench, "retry")]
    assert all(strict(m) for m in written)
    assert {i for i, status in counts if status == "completed"} == {"nested"}
    (result,) = [r for r in map(strict, await everything(bench, "results")) if r["request_id"] == "nested"]
    assert (result["usage"], result["response"]["body"]["choices"]) == (None, [CHAT]), "the answer is worth more than its figures"
    assert stub.calls == {**dict.fromkeys([*usages, "bent"], 3), "nested": 1}
    classes = [headers_of(m)["headrace_error_class"] for m in await everything(bench, "dlq")]
    assert (classes.count("undecodable"), classes.count("invalid_response")) == (6, len(usages) + 1)


async def test_field_18_retry_after_in_every_form(bench: Bench, stub: StubLLM) -> None:
    """Seconds about a minute and beyond, 0, a negative number, a date, milliseconds, garbage: due no earlier than asked; beyond an hour in all, dead."""
    asked: dict[str, tuple[float, dict[str, str]]] = {
        str(seconds): (seconds, {"retry-after": str(seconds)}) for seconds in (59, 60, 61, 121, 0, -1, 3_000, 4_000)
    }
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=300)
    asked["date"] = (280, {"retry-after": format_datetime(until, usegmt=True)})
    asked["past"] = (0, {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"})
    asked["ms"] = (61.5, {"retry-after-ms": "61500", "retry-after": "3"})
    asked["both"] = (90, {"retry-after-ms": "soon", "retry-after": "90"})
    asked["garbage"] = (0, {"retry-after": "a while"})
    stub.set_rules([rule(i, {"signal": "rate_limited", "retry_after": "none", "headers": headers}) for i, (_, headers) in asked.items()])
    bench.ask(*asked)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        retries = await bench.until("retry", len(asked) - 1)
        (dead,) = await bench.until("dlq", 1)
        await engine.stop()
    called_ms = {entry.request_id: entry.wall_ms for entry in stub.log}
    assert orjson.loads(dead.value() or b"")["request_id"] == "4000"
    assert headers_of(dead)["headrace_error_class"] == "rate_limited"
    for message in retries:
        request_id = orjson.loads(message.value() or b"")["request_id"]
        due_ms = int(headers_of(message)["headrace_next_retry_at"])
        if request_id == "date":
            assert due_ms >= until.timestamp() * 1000 - 1_000  # measured from the reply's own Date, of whole seconds
        assert due_ms >= called_ms[request_id] + asked[request_id][0] * 1000
        assert due_ms <= called_ms[request_id] + max(asked[request_id][0], 25) * 1_200 + 60_000, "and spread by a fifth"
    assert set(stub.calls.values()) == {1}


async def test_field_21_answers_that_are_none(bench: Bench, stub: StubLLM) -> None:
    """Status 200 with null or empty choices, an error inside, a web page, half an answer or anything else: classified, as often as its class allows, never completed."""
    bodies = {
        "list": "[]", "null": "null", "number": "17", "text": '"done"', "bare": "{}", "null-choice": '{"choices":[null]}', "page-choice": '{"choices":"<html>"}',
        "no-message": '{"choices":[{"finish_reason":"stop"}]}', "null-message": '{"choices":[{"finish_reason":"stop","message":null}]}',
        "cut": json.dumps({"choices": [CHAT | {"finish_reason": None}]}), "both": json.dumps({"choices": [CHAT], "error": {"message": "no"}}),
        "error-text": json.dumps({"choices": None, "error": "overloaded"}), "bom": "\ufeff" + json.dumps({"choices": [CHAT]}),
    }  # fmt: skip
    signals = (
        "no_choices",
        "null_choices",
        "error_in_200",
        "html_200",
        "empty_200",
        "finish_abort",
        "truncated_json",
        "finish_content_filter",
    )
    stub.set_rules([rule(name, {"body": body}) for name, body in bodies.items()] + [rule(name, name) for name in signals])
    ids = [*bodies, *signals]
    bench.ask(*ids, "well")
    async with Engine(bench.settings(stub.base_url)) as engine:
        counts = await bench.finished([*ids, "well"], timeout_s=60)
        await bench.until_drained()
        await engine.stop()
    assert counts == {**{(i, "failed"): 1 for i in ids}, ("well", "completed"): 1}
    dead = {orjson.loads(m.value() or b"")["request_id"]: headers_of(m)["headrace_error_class"] for m in await bench.until("dlq", len(ids))}
    assert dead == dict.fromkeys(ids, "invalid_response") | {"finish_content_filter": "content_policy"}
    assert stub.calls == dict.fromkeys(ids, 3) | {"finish_content_filter": 1, "well": 1}


async def test_field_25_times_of_every_zone(bench: Bench, stub: StubLLM) -> None:
    """A due time as Z, as any offset, on both sides of a clock's fold, with fractions, as numbers: the same moment in UTC, to the millisecond, not early; without a zone refused."""
    moment = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=123_001)
    due_ms = int(moment.timestamp()) * 1000 + 124  # what is finer than a millisecond is rounded up
    india, winter, summer = (timezone(timedelta(minutes=m)) for m in (330, 60, 120))
    local = moment.astimezone(winter).replace(tzinfo=None)
    written: dict[str, tuple[object, int]] = {
        "z": (moment.isoformat().replace("+00:00", "Z"), due_ms),
        "india": (moment.astimezone(india).isoformat(), due_ms),
        "fold-winter": (local.replace(tzinfo=winter).isoformat(), due_ms),
        "fold-summer": (local.replace(tzinfo=summer).isoformat(), due_ms - 3_600_000),
        "whole": (moment.replace(microsecond=0).isoformat(), due_ms - 124),
        "tenth": (f"{moment:%Y-%m-%dT%H:%M:%S}.5Z", due_ms - 124 + 500),
        "seconds": (due_ms // 1000, due_ms - 124),
        "ms": (due_ms, due_ms),
        "float": (due_ms // 1000 + 0.25, due_ms - 124 + 250),
    }
    naive: dict[str, object] = {"naive": local.isoformat(), "date": f"{local:%Y-%m-%d}", "spoken": "in an hour", "negative": -1}
    for request_id, value in [*((i, value) for i, (value, _) in written.items()), *naive.items()]:
        bench.ask(request_id, next_retry_at=value)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        deferred = await bench.until("retry", len(written))
        dead = await bench.until("dlq", len(naive))
        await engine.stop()
    found = {orjson.loads(m.value() or b"")["request_id"]: int(headers_of(m)["headrace_next_retry_at"]) for m in deferred}
    assert found == {i: expected for i, (_, expected) in written.items()}
    assert {headers_of(m)["headrace_error_class"] for m in dead} == {"invalid_request"}
    assert {r["request_id"] for r in map(parsed, await everything(bench, "results"))} == naive.keys()
    assert stub.total_calls == 0
