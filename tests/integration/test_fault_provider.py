"""A provider that hangs, breaks off, floods or misleads: each call ends in its class, with the promised number of calls, and gives back what it held."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import pytest

from headrace.config import ProviderSettings
from headrace.deadline import Deadlines
from headrace.envelope import Request
from headrace.errors import CallFailed, ErrorClass
from headrace.llm import Call, Llm, Transport
from headrace.llm.direct import DirectTransport
from headrace.llm.sdk import SdkTransport
from headrace.local.stub import Rule, StubLLM
from tests.support.audited import audited
from tests.support.bench import Bench, headers_of, parsed
from tests.support.engine import Engine
from tests.support.history import History

pytest_plugins = ["tests.support.fixtures"]

Kind = Literal["direct", "sdk"]
WAIT_S = 60.0
MIB = 1 << 20
# By fault: what the stub does, and the class it ends in (None: it is answered all the same).
FAULTS: dict[str, tuple[Any, ErrorClass | None]] = {
    "hang": ("hang", ErrorClass.TIMEOUT),
    "drip": ({"delivery": "drip", "drip_ms": 50}, ErrorClass.TIMEOUT),
    "interims-for-ever": ({"delivery": "interim", "interims": 0, "drip_ms": 5}, ErrorClass.TIMEOUT),
    "reset": ("reset", ErrorClass.CONNECTION),
    "close": ("close", ErrorClass.CONNECTION),
    "half-a-body": ("cut", ErrorClass.CONNECTION),
    "half-a-chunked-body": ("cut_chunked", ErrorClass.CONNECTION),
    "html": ("html_200", ErrorClass.INVALID_RESPONSE),
    "endless": ("endless", ErrorClass.INVALID_RESPONSE),
    "endless-500": ({"delivery": "endless", "status": 500}, ErrorClass.INVALID_RESPONSE),
    "bomb": ({"delivery": "bomb"}, ErrorClass.INVALID_RESPONSE),
    "redirect": ({"status": 307, "headers": {"location": "/v1/elsewhere"}}, ErrorClass.INVALID_RESPONSE),
    "not-gzip": ({"headers": {"content-encoding": "gzip"}}, ErrorClass.INVALID_RESPONSE),
    "interims": ({"delivery": "interim", "interims": 3, "drip_ms": 5}, None),
    "slow-bytes": ({"delivery": "drip", "drip_ms": 5, "drip_bytes": 50}, None),
}
CALLS = {ErrorClass.TIMEOUT: 3, ErrorClass.CONNECTION: 5, ErrorClass.INVALID_RESPONSE: 3, None: 1}


def faults() -> list[Rule]:
    """Each fault for the ids named after it; the others are answered."""
    return [Rule.model_validate({"name": n, "match": {"prompt_contains": f"[{n}]"}, "action": action}) for n, (action, _) in FAULTS.items()]


def provider(stub: StubLLM, kind: Kind, timeout_s: float) -> ProviderSettings:
    """The stub, by that transport."""
    return ProviderSettings(name="stub", base_url=stub.base_url, api_key="sk-test", default_model="m", transport=kind, timeout_s=timeout_s)


def a_request(name: str, number: int = 0) -> Request:
    """One that meets the fault of that name."""
    return Request(
        request_id=f"{name}.{number}", endpoint="/v1/chat/completions", body={"messages": [{"role": "user", "content": f"[{name}]"}]}
    )


async def kept(bench: Bench, stub: StubLLM, ids: list[str]) -> None:
    """The auditor finds every promise kept, with no extra call."""
    history = History()
    for request_id in ids:
        history.produced(request_id)
    verdict = await audited(bench, stub, history)
    assert (verdict.extra_calls or 0) <= 0, "attempts that never reached the server are none of its calls"


@pytest.fixture(params=["direct", "sdk"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each transport in turn."""
    return request.param  # type: ignore[no-any-return]  # pytest's is Any


@pytest.fixture
async def llm(stub: StubLLM, kind: Kind) -> AsyncIterator[Llm]:
    """Give a client of the stub."""
    stub.set_rules(faults())
    made = Llm([provider(stub, kind, 30.0)], pool=64, now_ms=lambda: 0)
    yield made
    await made.close()


async def test_each_fault_has_its_class_and_its_calls(bench: Bench, stub: StubLLM, kind: Kind) -> None:
    """Two ids of each fault among a hundred innocents: dead in its class after the promised calls, the innocents answered at their first."""
    stub.set_rules(faults())
    settings = bench.settings(stub.base_url, providers=(provider(stub, kind, 3.0),), limits={"concurrency": 32})
    innocents = [f"r{n:03}" for n in range(100)]
    async with Engine(settings) as engine:
        for name in FAULTS:
            bench.ask(f"{name}.0", f"{name}.1", prompt=f"[{name}]")
        bench.ask(*innocents)
        ids = [*(f"{name}.{n}" for name in FAULTS for n in (0, 1)), *innocents]
        counts = await bench.finished(ids, timeout_s=WAIT_S)
        await bench.until_drained(timeout_s=WAIT_S)
        await engine.stop()
    expected = {i: FAULTS[i[:-2]][1] if i[:-2] in FAULTS else None for i in ids}
    assert counts == {(i, "completed" if found is None else "failed"): 1 for i, found in expected.items()}
    dead = {parsed(m)["request_id"]: headers_of(m)["headrace_error_class"] for m in bench.read("dlq")}
    for request_id, found in expected.items():
        slow_machine = {ErrorClass.TIMEOUT} if request_id.startswith("endless") else set()  # the time-out came before the bound on bytes
        assert dead.pop(request_id, None) in {found, *slow_machine}
    assert not dead
    assert stub.calls == {i: CALLS[found] for i, found in expected.items()}
    await kept(bench, stub, ids)


async def test_connections_closed_while_idle_under_load(bench: Bench, stub: StubLLM, kind: Kind) -> None:
    """The keep-alive race: the server closes each connection a moment after its reply. Each request ends completed; a request that met
    the close is one `connection` attempt and is called again by the policy alone: never more HTTP calls than attempts.
    """
    stub.set_rules(
        [Rule.model_validate({"name": "idle", "action": {"delivery": "close_idle", "idle_ms": 1, "latency": {"uniform_ms": [0, 6]}}})]
    )
    ids = [f"r{n:03}" for n in range(400)]
    settings = bench.settings(stub.base_url, providers=(provider(stub, kind, 5.0),), limits={"concurrency": 6})
    async with Engine(settings) as engine:
        bench.ask(*ids)
        counts = await bench.finished(ids, timeout_s=WAIT_S)
        await bench.until_drained(timeout_s=WAIT_S)
        await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    results = [parsed(m) for m in bench.read("results")]
    classes = Counter(attempt["class"] for result in results for attempt in result["attempts"]["each"])
    assert set(classes) <= {None, "connection"}
    assert classes[None] == len(ids)
    for result in results:
        assert stub.calls[result["request_id"]] <= result["attempts"]["count"], "sent again behind the policy's back"
    await kept(bench, stub, ids)


async def test_a_deadline_ends_the_call_under_way(bench: Bench, stub: StubLLM, kind: Kind) -> None:
    """A silent provider with a time-out of 300 s, a request whose deadline is near: the call ends at the deadline, and its connection with it."""
    stub.set_rules(faults())
    settings = bench.settings(stub.base_url, providers=(provider(stub, kind, 300.0),))
    async with Engine(settings) as engine:
        begun = monotonic()
        deadline = datetime.now(UTC) + timedelta(seconds=2)
        bench.ask("r", prompt="[hang]", deadline_at=deadline.isoformat())
        await bench.finished(["r"], timeout_s=WAIT_S)
        assert monotonic() - begun < WAIT_S, "the provider's time-out is 300 s"
        await asyncio.wait_for(stub.wait_in_flight(0), 5)
        await engine.stop()
    (dead,) = bench.read("dlq")
    assert headers_of(dead)["headrace_error_class"] in ("timeout", "expired")
    assert stub.total_calls <= 1


@contextlib.contextmanager
def descriptors_given_back() -> Iterator[None]:
    """After the block as many are open as before."""
    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir()))
    yield
    after = len(list(opened.iterdir()))
    assert after <= before, f"{after - before} descriptors are still open"


async def _ends(llm: Llm, request: Request, timeout_s: float) -> None:
    with contextlib.suppress(CallFailed):
        await llm.call(request, attempt=1, timeout_s=timeout_s)


async def test_nothing_leaks_over_many_failed_calls(stub: StubLLM, kind: Kind) -> None:
    """Two hundred calls of every fault, fifty at once: afterwards no call is under way at the server, and no descriptor is left open here."""
    stub.set_rules(faults())
    with descriptors_given_back():
        llm = Llm([provider(stub, kind, 30.0)], pool=50, now_ms=lambda: 0)
        names = [name for name in FAULTS if name not in ("bomb", "endless", "endless-500")]  # those cost time, not sockets
        await asyncio.gather(*(_ends(llm, a_request(names[n % len(names)], n), 0.4) for n in range(200)))
        await asyncio.gather(*(_ends(llm, a_request(name, 999), 5) for name in ("bomb", "endless", "endless-500")))
        await asyncio.wait_for(stub.wait_in_flight(0), 10)
        await llm.close()
        async with asyncio.timeout(10):
            while stub.stats()["connections"]:  # noqa: ASYNC110  the server hears of a close by the network
                await asyncio.sleep(0.02)
    assert stub.total_calls <= 203, "some are out of time before they are sent; none is sent twice"
    assert set(stub.calls.values()) == {1}


async def test_a_handlers_deadline_ends_the_call_under_way(llm: Llm, stub: StubLLM) -> None:
    """A handler's own deadline, as the lanes set it, cuts calls off in mid-air: TimeoutError, and every connection is given up."""
    deadlines = Deadlines()

    async def handle(number: int) -> None:
        with pytest.raises(TimeoutError), deadlines.within(0.3):
            await llm.call(a_request("hang", number), attempt=1, timeout_s=30)

    await asyncio.gather(*(handle(number) for number in range(20)))
    await asyncio.wait_for(stub.wait_in_flight(0), 10)


@pytest.mark.parametrize("fault", ["endless", "endless-500", "bomb"])
async def test_a_flood_costs_bounded_memory(stub: StubLLM, kind: Kind, fault: str) -> None:
    """A body that never ends and 64 MiB packed into 64 KiB are given up at the bound, whatever the status: memory stays a few times the bound."""
    stub.set_rules(faults())
    made: Any = DirectTransport if kind == "direct" else SdkTransport.to
    transport: Transport = made(stub.base_url, pool=2, max_body_bytes=MIB)
    body = b'{"model":"m","messages":[{"role":"user","content":"[%s]"}]}' % fault.encode()
    tracemalloc.start()
    try:
        with pytest.raises(CallFailed) as caught:
            await transport.send(Call("/v1/chat/completions", body, {"Content-Type": "application/json"}, 20.0, 5.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await transport.close()
    assert caught.value.failure.error_class is ErrorClass.INVALID_RESPONSE
    assert peak < 8 * MIB, f"{peak / MIB:.1f} MiB"
