"""The largest a topic takes, and one byte more, through every path: alone and among innocents, incompressible and hiding its size."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import KafkaError, Message, Producer

from headrace.decode import READABLE_BYTES
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, headers_of, parsed, raw_headers
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.whole import everything

pytest_plugins = ["tests.support.fixtures"]

MAIN, ROOM, RESULTS = 65_536, 131_072, 196_608
BATCH_HEADER = 61
Sent = tuple[bytes, bytes, list[tuple[str, bytes]]]


@pytest.fixture
def small(kafka: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics of small limits, as far apart as the defaults."""
    made = Bench(kafka, redis_url, namespace, sizes={"main": MAIN, "retry": ROOM, "later": ROOM, "dlq": ROOM, "results": RESULTS})
    yield made
    made.close()


def noise(size: int, seed: int) -> str:
    """Text that does not compress with lz4, and by a quarter with zstd."""
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4 + 3)).decode()[:size]


def varint(number: int) -> int:
    """How many bytes a length takes."""
    return max(1, ((number << 1).bit_length() + 6) // 7)


def size_of_batch(key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> int:
    """What a record takes that is alone in its batch, uncompressed (Kafka's format, version 2)."""
    parts = [key, value, *(part for name, held in headers for part in (name.encode(), held))]
    body = 3 + varint(len(headers)) + sum(varint(len(part)) + len(part) for part in parts)
    return BATCH_HEADER + varint(body) + body


def filled(request_id: str, kind: str, size: int = MAIN) -> Sent:
    """A request whose batch has exactly `size` bytes: the prompt makes it so, or headers do."""
    key, headers = request_id.encode(), [("n", b"")]
    if kind == "headers":
        headers += [(f"h{n}", b"x" * 10) for n in range(3_000)]
    room = size - size_of_batch(key, orjson.dumps({"request_id": request_id, "prompt": ""}), headers)
    for fill in range(room - 12, room + 1):  # lengths take bytes too
        value = orjson.dumps({"request_id": request_id, "prompt": noise(fill if kind == "prompt" else 0, len(request_id))})
        held = [("n", b"" if kind == "prompt" else noise(fill, 7).encode()), *headers[1:]]
        if size_of_batch(key, value, held) == size:
            return value, key, held
    raise AssertionError("no fill gives this size")


def squeezed(bench: Bench, codec: str, *values: bytes) -> None:
    """Produce values whose batch hides their size."""
    producer = Producer({"bootstrap.servers": bench.kafka, "compression.type": codec, "message.max.bytes": 100_000_000, "linger.ms": 0})
    errors: list[KafkaError | None] = []
    for value in values:
        producer.produce(bench.names.main, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(20) == 0
    assert errors == [None] * len(values)


def rule(name: str, action: object, *ids: str, **match: object) -> Rule:
    return Rule.model_validate({"name": name, "match": {"request_ids": ids} | match, "action": action})


def by_id(messages: list[Message]) -> dict[str, Message]:
    return {str(orjson.loads(m.value() or b"{}").get("request_id")): m for m in messages}


async def replay(bench: Bench, folder: Path, *arguments: str) -> str:
    """`headrace dlq replay --execute`; what it says."""
    done = await headrace(environment(bench, folder), "dlq", "replay", "--execute", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr.decode()


def test_the_largest_is_what_these_tests_think_it_is(small: Bench) -> None:
    """The broker takes records filled to main's limit, by their prompt or by 3,000 headers, and refuses both with one byte more."""
    for kind in ("prompt", "headers"):
        for size, expected in ((MAIN, None), (MAIN + 1, KafkaError.MSG_SIZE_TOO_LARGE)):
            codes: list[int | None] = []
            value, key, headers = filled("r", kind, size)
            small.producer.produce(
                small.names.main, value, key, 0, lambda error, _, codes=codes: codes.append(error and error.code()), headers=headers
            )
            small.producer.flush(20)
            assert codes == [expected], kind


async def test_the_largest_request_goes_every_way(small: Bench, stub: StubLLM, tmp_path: Path) -> None:
    """Filled to main's last byte, or many times larger and well compressed: answered, retried, sent over a wheel, dead, replayed; bytes intact, innocents too."""
    sent: dict[str, Sent] = {}
    paths = ("answer", "retry", "later", "dead")
    for path in paths:
        for kind in ("prompt", "headers"):
            sent[f"{kind}-{path}"] = filled(f"{kind}-{path}", kind)
    zeros = {f"zeros-{path}": orjson.dumps({"request_id": f"zeros-{path}", "prompt": "0" * (1 << 20)}) for path in paths}
    kinds = ("prompt", "headers", "zeros")
    stub.set_rules(
        [
            rule("retry", {"signal": "server_error", "message": "so " * 2_000}, *(f"{kind}-retry" for kind in kinds), first=2),
            rule("later", {"signal": "rate_limited", "retry_after_s": 5}, *(f"{kind}-later" for kind in kinds), first=1),
            rule("dead", {"signal": "invalid_request", "message": "no " * 2_000}, *(f"{kind}-dead" for kind in kinds), first=1),
        ]
    )
    for number, (value, key, headers) in enumerate(sent.values()):
        small.send(value, key=key, headers=headers, partition=0)
        small.flush()
        small.ask(f"good-{number}", partition=0)
    squeezed(small, "lz4", *zeros.values())
    good = [f"good-{number}" for number in range(len(sent))]
    async with Engine(small.settings(stub.base_url)) as engine:
        finals = await small.finished([*sent, *zeros, *good], timeout_s=60)
        dead = by_id(await small.until("dlq", 3))
        assert {i for i, status in finals if status == "failed"} == {f"{kind}-dead" for kind in kinds}
        assert "sent 3 of 3" in await replay(small, tmp_path)
        ids = {f"{kind}-dead" for kind in kinds}
        await small.until("results", lambda seen: ids <= {r["request_id"] for r in map(parsed, seen) if r["status"] == "completed"}, 60)
        await small.until_drained(("main", "retry", "later"), timeout_s=30)
        await engine.stop()
    written = {role: await everything(small, role) for role in ("retry", "later", "dlq", "results")}
    for message in [*written["retry"], *written["later"], *written["dlq"]]:
        request_id = orjson.loads(message.value() or b"")["request_id"]
        value, key, headers = sent.get(request_id) or (zeros[request_id], None, [])
        assert (message.value(), message.key()) == (value, key)
        assert [h for h in raw_headers(message) if not h[0].startswith("headrace_")] == headers
    statuses = [(r["request_id"], r["status"]) for r in map(parsed, written["results"])]
    assert sorted(i for i, status in statuses if status == "completed") == sorted([*sent, *zeros, *good]), "each once"
    assert set(by_id(written["later"])) == {f"{kind}-later" for kind in kinds}
    assert set(dead) == {f"{kind}-dead" for kind in kinds}
    assert stub.calls == {i: 3 if i.endswith("retry") else 2 if i.endswith(("later", "dead")) else 1 for i in (*sent, *zeros, *good)}


async def test_what_only_its_producers_compression_made_fit(small: Bench, stub: StubLLM) -> None:
    """Larger than every topic once zstd is undone: answered where the call succeeds, else one dead letter, cut and flagged; neighbours and copies go on."""
    block = noise(70_000, 3)
    prompts = {i: orjson.dumps({"request_id": i, "prompt": block * 4}) for i in ("fine", "failing", "dead")}
    echoed = orjson.dumps({"request_id": "echoed", "prompt": "x", "metadata": {"long": block * 4}})
    stub.set_rules([rule("failing", "server_error", "failing"), rule("dead", "invalid_request", "dead")])
    small.ask("before", partition=0)
    squeezed(small, "zstd", *prompts.values(), echoed, echoed)
    small.ask("after", partition=0)
    async with Engine(small.settings(stub.base_url)) as engine:
        counts = await small.finished(["fine", "failing", "dead", "echoed", "before", "after"], timeout_s=60)
        await small.until("results", lambda seen: any(r["status"] == "duplicate" for r in map(parsed, seen)))
        await small.until_drained()
        await engine.stop()
    assert {i for i, status in counts if status == "completed"} == {"fine", "before", "after"}
    dead = await everything(small, "dlq")
    classes = sorted(headers_of(m)["headrace_error_class"] for m in dead)
    # on a slow machine the copy would wait in the retry topic, which does not take it either
    assert classes in (["invalid_request", "too_large", "too_large"], ["invalid_request", "too_large", "too_large", "too_large"])
    assert all(headers_of(m)["headrace_cut"].startswith("value ") and headers_of(m)["headrace_origin"] for m in dead)
    whole = [*prompts.values(), echoed]
    assert all(any(value.startswith(m.value() or b"-") for value in whole) for m in dead), "cut, and otherwise the bytes that came"
    assert all(len(m.value() or b"") > MAIN for m in dead)
    notices = [r for r in map(parsed, await everything(small, "results")) if r["request_id"] == "echoed"]
    assert sorted(r["status"] for r in notices) == ["duplicate", "failed"]
    assert all(r["metadata"] is None for r in notices), "a notice is always taken"
    assert stub.calls == {"fine": 1, "failing": 1, "dead": 1, "echoed": 1, "before": 1, "after": 1}


async def test_a_value_larger_than_is_read(small: Bench, stub: StubLLM) -> None:
    """Some kilobytes of zstd that become more than a worker will parse: one dead letter with the whole value, nothing parsed, neighbours go on."""
    value = b'{"request_id":"bomb","body":{"messages":[' + b"[]," * (READABLE_BYTES // 3) + b"[]]}}"
    small.ask("before", partition=0)
    squeezed(small, "zstd", value)
    small.ask("after", partition=0)
    async with Engine(small.settings(stub.base_url), "main") as engine:
        counts = await small.finished(["before", "after"], timeout_s=60)
        (letter,) = await small.until("dlq", 1, timeout_s=60)
        await small.until_drained(["main"])
        await engine.stop()
    assert counts["before", "completed"] == counts["after", "completed"] == 1
    assert headers_of(letter)["headrace_error_class"] == "too_large"
    assert letter.value() == value
    assert stub.total_calls == 2


async def test_answers_around_the_results_limit(small: Bench, stub: StubLLM) -> None:
    """Answers of every size about the limit, in batches with innocents: each a result with the whole answer, or one too_large dead letter; innocents complete."""
    sizes = {f"a{n:04}": RESULTS - 1_400 + n * 40 for n in range(36)}
    bodies = {
        i: orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": noise(size, n)}}]})
        for n, (i, size) in enumerate(sizes.items())
    }
    zeros = orjson.dumps({"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "0" * (2 << 20)}}]})
    stub.set_rules([rule(i, {"body": body.decode()}, i) for i, body in bodies.items()] + [rule("zeros", {"body": zeros.decode()}, "zeros")])
    small.ask("alone", partition=1)
    for number, request_id in enumerate((*bodies, "zeros")):
        small.ask(request_id, f"good-{number}", partition=0)
    async with Engine(small.settings(stub.base_url)) as engine:
        counts = await small.finished([*bodies, "zeros", "alone", *(f"good-{n}" for n in range(37))], timeout_s=60)
        await small.until_drained()
        await engine.stop()
    assert set(counts.values()) == {1}
    completed = {i for i, status in counts if status == "completed"}
    too_large = {i for i, status in counts if status == "failed"}
    assert {"zeros", "alone", *(f"good-{n}" for n in range(37))} <= completed
    results = {r["request_id"]: r for r in map(parsed, await everything(small, "results"))}
    assert all(results[i]["response"]["body"] == orjson.loads(bodies[i]) for i in completed & bodies.keys())
    assert all(sizes[i] > RESULTS - 1_400 for i in too_large)
    assert len(completed & bodies.keys()) > 5
    assert len(too_large) > 5
    dead = await everything(small, "dlq")
    assert {headers_of(m)["headrace_error_class"] for m in dead} == {"too_large"}
    assert by_id(dead).keys() == too_large
    assert set(stub.calls.values()) == {1}
