"""Formats that outlive a process: today's are kept in golden files, and what an unknown newer version wrote is ignored or refused, never trusted."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import orjson
import pytest
import redis as sync_redis
from confluent_kafka import Consumer, TopicPartition

from headrace import shared_pauses
from headrace.claims import Claim, Token
from headrace.config import TopicNames
from headrace.decode import decode_main
from headrace.envelope import Attempt, Job, Position, Record, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.guard.handover import UnreadableOutcome, dump_outcome, load_outcome
from headrace.local.stub import Rule, StubLLM
from headrace.offsets import Map, Sequence, decode_map, encode_map
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Duplicate, Outcome, Retry, Settlement
from headrace.outputs import Outputs
from headrace.pauses import Pause, Scope
from headrace.store import Store, codec
from headrace.trail import read_trail
from tests.support.audited import audited
from tests.support.bench import Bench, parsed
from tests.support.engine import Engine
from tests.support.golden import golden, same_as_golden
from tests.support.history import History
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

WAIT_S = 60.0
AT_MS = 1_790_000_000_000
FAILURE = Failure(ErrorClass.SERVER_ERROR, "HTTP 500: it broke", "boom", 500, 2_000, True, True, "p", "m")
RESPONSE = Response(b'{"choices":[]}', 200, "p", "served", "req-1", "stop", {"total_tokens": 3})
ATTEMPTS = (Attempt("rate_limited", 12, "p"), Attempt(None, 34, "p"))
OUTCOMES: dict[str, Outcome] = {
    "completed": Completed(RESPONSE, ATTEMPTS, AT_MS, 34),
    "degraded": Degraded(RESPONSE, FAILURE, ATTEMPTS, AT_MS, 34),
    "retry": Retry(FAILURE, ATTEMPTS, AT_MS + 500, 600, AT_MS),
    "deferred": Deferred(AT_MS + 5_000, "target shut"),
    "dead": Dead(FAILURE, AT_MS, ATTEMPTS, 700),
    "dropped": Dropped(FAILURE, AT_MS),
}
MAPS = {
    "runs": Map(1_000, 6_000, 0b1001, Sequence("inc-1", 255)),
    "bitmap": Map(7, 55, int("10" * 24, 2) | 1, Sequence("inc_2", (1 << 64) - 1)),
    "nothing": Map(0, 0, 0, Sequence("i", 0)),
}
NAMES = TopicNames(main="main", retry="retry", later="later", dlq="dlq", results="results")


def a_job() -> Job:
    """A request on its third way through, with everything a trail can hold."""
    value = orjson.dumps({"request_id": "r-1", "prompt": "hello", "agent_id": "a", "channel": "c", "metadata": {"k": "v"}})
    record = Record("retry", 1, 42, 3, b"key", value, [("mine", b"\xff\x00"), ("empty", None)], AT_MS - 1_000)
    trail = Trail(
        Position("main", 2, 7), 2, 1, AT_MS - 10, AT_MS + 60_000, AT_MS - 900, 345, (Attempt("server_error", 5, "p"),), "replay-1", 1,
        FAILURE, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )  # fmt: skip
    return decode_main(record)._replace(trail=trail)


def written(outcome: Outcome) -> list[dict[str, Any]]:
    """The records of an outcome, as text."""
    outputs = Outputs(NAMES, dict.fromkeys(NAMES.model_dump().values(), 1 << 20)).of(Settlement(a_job(), outcome))
    return [
        {
            "topic": output.topic,
            "key": (output.key or b"").decode(),
            "value": orjson.loads(output.value or b"null"),
            "headers": [[name, value.decode("latin-1") if value is not None else None] for name, value in output.headers],
        }
        for output in outputs
    ]


def test_the_map_is_written_as_ever_and_read_as_ever() -> None:
    """Maps in commit metadata: today's text is the golden one, and every golden text gives its map back."""
    now = [
        {"name": n, **asdict(m), "unresolved": m.offsets(), "sequence": list(m.sequence), "text": encode_map(m)} for n, m in MAPS.items()
    ]
    same_as_golden("map.v1", now)
    for _, rows in golden("map.v*"):
        for row in rows:
            found = decode_map(row["frontier"], row["text"])
            assert found is not None
            assert (found.end, found.offsets(), list(found.sequence)) == (row["end"], row["unresolved"], row["sequence"])


def test_a_hand_over_is_written_as_ever_and_read_as_ever() -> None:
    """Outcomes left in Redis: today's bytes are the golden ones, and every golden one is the outcome it was."""
    same_as_golden("handover.v1", {name: dump_outcome(outcome).decode() for name, outcome in OUTCOMES.items()})
    for _, rows in golden("handover.v*"):
        assert {name: load_outcome(text.encode()) for name, text in rows.items()} == OUTCOMES


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_hand_over_of_a_newer_version_is_unreadable(outcome: str) -> None:
    """Another version, kind, class or field: UnreadableOutcome and nothing else, so that the request is called again."""
    head, _, body = dump_outcome(OUTCOMES[outcome]).partition(b"\n")
    changes: list[dict[str, Any]] = [{"v": 99}, {"kind": "parked"}, {"fields": {**orjson.loads(head)["fields"], "new": 1}}, {"fields": []}]
    for change in changes:
        with pytest.raises(UnreadableOutcome):
            load_outcome(orjson.dumps(orjson.loads(head) | change) + b"\n" + body)


def test_headers_and_results_are_written_as_ever_and_read_as_ever() -> None:
    """Retry records, dead letters, results and notices: today's are the golden ones, and the trail in every golden record is read back."""
    outcomes = OUTCOMES | {"duplicate": Duplicate("completed", AT_MS - 5, AT_MS)}
    same_as_golden("records.v1", {name: written(outcome) for name, outcome in outcomes.items()})
    for _, rows in golden("records.v*"):
        for row in [row for records in rows.values() for row in records if row["topic"] in ("retry", "dlq")]:
            headers = [(name, None if text is None else text.encode("latin-1")) for name, text in row["headers"]]
            trail = read_trail(Record(row["topic"], 0, 0, 1, None, b"{}", headers, 0), trusted=True)
            assert (trail.origin, trail.replay_id, trail.deadline_at_ms) == (Position("main", 2, 7), "replay-1", AT_MS + 60_000)
            assert trail.hop >= 2
            assert trail.attempts[0] == Attempt("server_error", 5, "p")


def test_a_trail_of_a_newer_version_is_read_as_far_as_it_is_understood() -> None:
    """Unknown headers, classes and forms of numbers are passed over; what is understood counts; nothing raises."""
    headers = [
        ("headrace_hop", b"4"), ("headrace_origin", b"main/2/7"), ("headrace_tier", b"gold"), ("headrace_retry_count", b"2.5"),
        ("headrace_next_retry_at", b"2030-01-01T00:00:00Z"), ("headrace_error_class", b"bewitched"),
        ("headrace_attempts", b'[{"class":"bewitched","latency_ms":1,"provider":"p"}]'), ("headrace_deadline_at", b"\xff"),
    ]  # fmt: skip
    trail = read_trail(Record("retry", 0, 0, 1, None, b"{}", headers, 0), trusted=True)
    assert (trail.hop, trail.origin) == (4, Position("main", 2, 7))
    assert (trail.retry_count, trail.next_retry_at_ms, trail.deadline_at_ms, trail.failure, trail.attempts) == (0, None, None, None, ())


@pytest.fixture
async def store(redis_url: str, namespace: str) -> AsyncIterator[Store]:
    """Give a store whose admission is open."""
    opened = Store(redis_url, namespace)
    await opened.open()
    await opened.epochs.enter()
    await opened.epochs.lease("test")
    assert await opened.epochs.reopen("test")
    yield opened
    await opened.close()


class Keys:
    """What Redis holds under the test's name, as bytes."""

    def __init__(self, redis_url: str, namespace: str) -> None:
        self._client = sync_redis.Redis.from_url(redis_url)
        self._prefix = f"{{{namespace}}}:"

    def claim(self, request_id: str) -> bytes | None:
        """The value of a request id."""
        value: Any = self._client.get(f"{self._prefix}claim:{request_id}")
        return value if value is None else bytes(value)

    def put_claim(self, request_id: str, value: bytes) -> None:
        """As another version would."""
        self._client.set(f"{self._prefix}claim:{request_id}", value, px=600_000)

    def drop_claim(self, request_id: str) -> None:
        """It is gone."""
        self._client.delete(f"{self._prefix}claim:{request_id}")

    def put_pauses(self, fields: dict[bytes, bytes]) -> None:
        """As another version would."""
        self._client.hset(f"{self._prefix}pauses", mapping=fields)  # type: ignore[arg-type]  # bytes are taken

    def pauses(self) -> dict[bytes, bytes]:
        """All fields."""
        return self._client.hgetall(f"{self._prefix}pauses")  # type: ignore[return-value]  # no coroutine here


def a_claim(request_id: str) -> Claim:
    """One with a name and an origin that need escaping."""
    return Claim(request_id, Position("retry", 1, 42), Position("ma|in", 2, 7), 3, Token("inc-1", 5), "fp%|print")


async def test_claim_values_are_written_as_ever_and_read_as_ever(store: Store, redis_url: str, namespace: str) -> None:
    """Each state of a claim in Redis: today's value is the golden one (times apart), and every golden value is read by the scripts."""
    keys = Keys(redis_url, namespace)
    now: dict[str, str] = {}
    for state in ("claimed", "answered", "waiting", "dead", "done"):
        await store.claim([a_claim(state)])
        if state == "answered":
            await store.hand_over([(a_claim(state), b"payload|with|bars\n\xc3\xa9")])
        elif state != "claimed":
            await store.mark([(a_claim(state), state)])  # type: ignore[list-item]  # the names of three states are those of marks
        now[state] = re.sub(r"\d{13}", lambda found: "0" * 13 if int(found[0]) == 0 else "1" * 13, (keys.claim(state) or b"").decode())
    same_as_golden("claim.v1", now)
    for _, rows in golden("claim.v*"):
        for state, text in rows.items():
            assert codec.held(text.encode()).state == state
            keys.put_claim(f"old-{state}", text.replace("1" * 13, str(AT_MS + 10**11)).encode())
            (answer,) = await store.claim([a_claim(f"old-{state}")])
            kind = {"claimed": "Granted", "answered": "Answered"}.get(state, "Taken")
            assert type(answer).__name__ == kind, f"{state}: {answer}"


async def test_pauses_are_written_as_ever_and_read_as_ever(store: Store, redis_url: str, namespace: str) -> None:
    """A pause in Redis: today's field is the golden one, and every golden one is the pause it was. What a newer version wrote stays and shuts nothing."""
    pauses = [Pause(Scope("p", "cafe0123", None), AT_MS, 30_000), Pause(Scope("p", "none", "m"), AT_MS + 1, 900_000)]
    texts = {orjson.dumps(list(p.scope)).decode(): shared_pauses._dump(p) for p in pauses}
    for key, text in texts.items():
        await store.put_pause(key, text, 60_000)
    keys = Keys(redis_url, namespace)
    same_as_golden("pause.v1", {k.decode(): re.sub(r"^\d{13}", "1" * 13, text.decode()) for k, text in keys.pauses().items()})
    for _, rows in golden("pause.v*"):
        assert [shared_pauses.parse(text[14:]) for text in rows.values()] == pauses
    newer = {b"v2": b"2|{}", b"v3": b'9999999999999|{"v":3}', b"v4": b"", b"\xff": b"9999999999999|\xff"}
    keys.put_pauses(newer)
    await store.put_pause("again", "[]", 60_000)
    read = await store.pauses()
    assert set(texts) <= set(read)
    assert newer.items() <= keys.pauses().items(), "what is not ours is left alone"
    assert [found for text in read.values() if (found := shared_pauses.parse(text))] == pauses


async def test_a_map_of_a_newer_version_is_ignored_and_its_records_are_handled_again(bench: Bench, stub: StubLLM) -> None:
    """A committed map this version does not know: everything from the committed offset on is handled, nothing below it, and lag reaches 0."""
    bench.ask(*(f"r{n:02}" for n in range(20)), partition=0)
    theirs = TopicPartition(bench.names.main, 0, 5, "9.inc.9.10.z" + "A" * 40 + ".deadbeef")
    committer = Consumer({"bootstrap.servers": bench.kafka, "group.id": f"{bench.namespace}.main", "enable.auto.commit": False})
    committer.commit(offsets=[theirs], asynchronous=False)
    committer.close()
    assert bench.standing("main")[0][:2] == (5, theirs.metadata)
    async with Engine(bench.settings(stub.base_url)) as engine:
        await bench.finished([f"r{n:02}" for n in range(5, 20)], timeout_s=WAIT_S)
        await bench.until_drained(timeout_s=WAIT_S)
        await engine.stop()
    assert stub.calls == {f"r{n:02}": 1 for n in range(5, 20)}


async def test_a_claim_of_a_newer_version_holds_its_request_and_nothing_else(bench: Bench, stub: StubLLM, redis_url: str) -> None:
    """Claims this version cannot read: their requests wait and are neither called, ended nor told to be conflicts; the claims are left as they
    are; others go on. Once the claims are gone, each is answered once.
    """
    values = {"layout": b"c2|{}", "state": b"z|1790000000000|1790000000000|m/0/0|m/0/0|0|inc/1|fp|", "empty": b"", "bytes": b"\xff\xfe"}
    keys = Keys(redis_url, bench.namespace)
    for request_id, value in values.items():
        keys.put_claim(request_id, value)
    async with Engine(bench.settings(stub.base_url)) as engine:
        bench.ask(*values, "r1", "r2", partition=0)
        await bench.finished(["r1", "r2"], timeout_s=WAIT_S)
        await bench.until("retry", len(values), WAIT_S)
        assert stub.calls == {"r1": 1, "r2": 1}
        assert {request_id: keys.claim(request_id) for request_id in values} == values
        assert engine.named("claim_unreadable")
        for request_id in values:
            keys.drop_claim(request_id)
        counts = await bench.finished(values, timeout_s=WAIT_S)
        await bench.until_drained(timeout_s=WAIT_S)
        await engine.stop()
    assert counts == {(i, "completed"): 1 for i in (*values, "r1", "r2")}
    await audited(bench, stub, History())


async def test_an_answer_of_a_newer_version_costs_a_call(bench: Bench, stub: StubLLM, redis_url: str) -> None:
    """A hand-over this version cannot read: told, called again, completed once."""
    bench.ask("r", partition=0)
    (message,) = [m for m in bench.read("main", wait_s=5) if m.error() is None]
    job = decode_main(Record(bench.names.main, 0, 0, 1, message.key(), message.value(), [], 0))
    claim = Claim("r", job.record.position, job.record.position, 0, Token("newer", 1), job.fingerprint or "")
    payload = b'{"v":99,"kind":"completed","fields":{}}\n{}'
    Keys(redis_url, bench.namespace).put_claim("r", f"a|0000000000001|{AT_MS}|{codec.tail(claim)}".encode() + payload)
    async with Engine(bench.settings(stub.base_url)) as engine:
        counts = await bench.finished(["r"], timeout_s=WAIT_S)
        await bench.until_drained(timeout_s=WAIT_S)
        assert engine.named("answer_unreadable")
        await engine.stop()
    assert counts == {("r", "completed"): 1}
    assert stub.calls == {"r": 1}
    await audited(bench, stub, History())


async def test_pauses_of_a_newer_version_shut_nothing(bench: Bench, stub: StubLLM, redis_url: str) -> None:
    """Fields this version cannot read, while it has a pause of its own to share: no worker ends, its own pause is shared, its requests complete."""
    stub.set_rules([Rule.model_validate({"name": "quota", "match": {"request_ids": ["r1"], "first": 1}, "action": "insufficient_quota"})])
    keys = Keys(redis_url, bench.namespace)
    newer = {b"v2": b"2|{}", b"v3": b'9999999999999|{"v":3}', b"\xff": b"\xff"}
    keys.put_pauses(newer)
    async with Engine(bench.settings(stub.base_url, pause={"first_s": 2.5})) as engine:
        bench.ask("r1", "r2")
        await engine.event("alert", timeout_s=WAIT_S)
        counts = await bench.finished(["r1", "r2"], timeout_s=WAIT_S)
        assert not engine.named("pauses_not_shared")
        await engine.stop()
    assert counts == {(i, "completed"): 1 for i in ("r1", "r2")}
    assert newer.items() <= keys.pauses().items()


async def test_a_retry_of_a_newer_version_is_handled(bench: Bench, stub: StubLLM) -> None:
    """Retry records with headers and classes of another version among ordinary ones: each is handled once, and none stalls the lane."""
    headers = [
        ("headrace_tier", b"gold"), ("headrace_error_class", b"bewitched"), ("headrace_next_retry_at", b"next week"),
        ("headrace_attempts", b'{"v":2}'), ("headrace_hop", b"1"), ("headrace_origin", b"main/2/7?v=2"),
    ]  # fmt: skip
    for number in range(10):
        value = orjson.dumps({"request_id": f"r{number}", "prompt": "hello"})
        bench.send(value, role="retry", headers=headers if number % 2 else None)
    bench.flush()
    async with Engine(bench.settings(stub.base_url), "retry") as engine:
        counts = await bench.finished([f"r{n}" for n in range(10)], timeout_s=WAIT_S)
        await bench.until_drained(["retry"], timeout_s=WAIT_S)
        await engine.stop()
    assert counts == {(f"r{n}", "completed"): 1 for n in range(10)}
    assert set(stub.calls.values()) == {1}


async def test_two_workers_of_different_settings_share_a_fleet(bench: Bench, stub: StubLLM) -> None:
    """Notices on and off, `direct` and `sdk`, other concurrency and window, up and down in turn: every promise holds over both."""
    slow = {"latency": {"uniform_ms": [20, 200]}}
    stub.set_rules([
        Rule.model_validate({"name": "again", "match": {"share": 0.2, "first": 1}, "action": {"signal": "server_error", **slow}}),
        Rule.model_validate({"name": "slow", "action": slow}),
    ])  # fmt: skip
    plain = bench.settings(stub.base_url, timeout_s=30, limits={"concurrency": 8})
    sdk = plain.providers[0].model_copy(update={"transport": "sdk"})
    other = bench.settings(stub.base_url, providers=(sdk,), duplicate_notices=False, limits={"concurrency": 24, "window": 200})
    ids, history = [f"r{n:03}" for n in range(240)], History()
    with Worker(plain) as first:
        bench.ask(*ids[:80], *ids[:20])
        await stub.wait_calls(20)
        with Worker(other) as second:
            await second.event("assigned", count=2, timeout_s=WAIT_S)
            bench.ask(*ids[80:160], *ids[60:100])
            await stub.wait_calls(100)
            first.signal(signal.SIGTERM)
            assert await first.exit_code() == 0
            with Worker(plain) as third:
                await third.event("started", timeout_s=WAIT_S)
                bench.ask(*ids[160:], *ids[150:200])
                counts = await bench.finished(ids, timeout_s=WAIT_S)
                await bench.until_drained(timeout_s=WAIT_S)
                for worker in (second, third):
                    worker.signal(signal.SIGTERM)
                    assert await worker.exit_code() == 0
    for request_id in ids:
        history.produced(request_id)
    verdict = await audited(bench, stub, history, settings=other)  # one of them tells copies nothing
    assert (verdict.extra_calls or 0) <= 0, "attempts that never reached the server are none of its calls"
    answered = [r for r in map(parsed, bench.read("results")) if r["status"] == "completed"]
    assert Counter(r["request_id"] for r in answered) == dict.fromkeys(ids, 1)
    classes = {attempt["class"] for r in answered for attempt in r["attempts"]["each"]}
    assert classes <= {None, "server_error"}, "nothing failed but what the script says"
    assert sum(n for (_, status), n in counts.items() if status == "duplicate") <= 110
