"""The guarded client over a fake transport: what it adds to a request, and what it keeps to itself."""

from __future__ import annotations

import orjson
import pytest

from headrace.config import ProviderSettings
from headrace.envelope import Request
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm import Call, Llm, Reply, Target, key_id_of

OK = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'


class FakeTransport:
    """Keeps the calls; answers with `reply`, or raises it."""

    def __init__(self, reply: Reply | CallFailed) -> None:
        self.reply = reply
        self.calls: list[Call] = []
        self.closed = False

    async def send(self, call: Call) -> Reply:
        self.calls.append(call)
        if isinstance(self.reply, CallFailed):
            raise self.reply
        return self.reply

    async def close(self) -> None:
        self.closed = True


PROVIDER = ProviderSettings(
    name="p", base_url="http://127.0.0.1/v1", api_key="sk-one", default_model="asked", timeout_s=9, headers={"X-Org": "o"}
)


def client(reply: Reply | CallFailed | None = None, provider: ProviderSettings = PROVIDER) -> tuple[Llm, FakeTransport]:
    transport = FakeTransport(reply or Reply(200, {}, OK, 1))
    return Llm([provider], pool=2, now_ms=lambda: 0, transport=transport), transport


async def test_a_call_carries_id_attempt_key_and_model() -> None:
    """Headers of ours, the configured ones, the default model; the provider's time-out caps what is asked."""
    llm, transport = client()
    response = await llm.call(Request(request_id="r:1", body={"messages": []}), attempt=4, timeout_s=60)
    sent = transport.calls[0]
    assert sent.headers["Idempotency-Key"] == "r:1"
    assert sent.headers["X-Headrace-Attempt"] == "4"
    assert sent.headers["Authorization"] == "Bearer sk-one"
    assert sent.headers["X-Org"] == "o"
    assert (sent.timeout_s, sent.connect_timeout_s) == (9, 5)
    assert orjson.loads(sent.body) == {"messages": [], "model": "asked"}
    assert (response.body, response.provider, response.model) == (OK, "p", "asked")


async def test_the_request_is_not_changed() -> None:
    """Filling in the model leaves the request's own body alone: its fingerprint must not move."""
    llm, _ = client()
    body = {"messages": [1]}
    await llm.call(Request(request_id="r", body=body), attempt=1, timeout_s=1)
    assert body == {"messages": [1]}


async def test_a_transport_failure_names_who_was_called() -> None:
    """A failure without a reply still says which provider and model it was."""
    llm, _ = client(CallFailed(Failure(ErrorClass.CONNECTION, "m", called=True)))
    with pytest.raises(CallFailed) as caught:
        await llm.call(Request(request_id="r", body={"model": "own"}), attempt=1, timeout_s=1)
    assert (caught.value.failure.provider, caught.value.failure.model) == ("p", "own")


async def test_target_tells_keys_apart_without_showing_them() -> None:
    """A target names provider, model and an id of the key from which the key cannot be read."""
    llm, transport = client()
    other = PROVIDER.model_copy(update={"api_key": None})
    target = llm.target_of(Request(request_id="r", body={"model": "m" * 5000}))
    assert (target.provider, len(target.model) <= 256, target.key_id) == ("p", True, key_id_of(PROVIDER))
    assert llm.targets == (Target("p", "asked", key_id_of(PROVIDER)),)
    assert "sk-one" not in repr(llm.targets)
    assert key_id_of(other) == "none"
    await llm.close()
    assert transport.closed


async def test_no_key_means_no_authorization() -> None:
    """A server without keys gets no made-up one."""
    llm, transport = client(provider=PROVIDER.model_copy(update={"api_key": None}))
    await llm.call(Request(request_id="r", body={}), attempt=1, timeout_s=1)
    assert "Authorization" not in transport.calls[0].headers
