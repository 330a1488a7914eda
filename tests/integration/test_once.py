"""`ctx.once` of a worker whose Redis freezes, or loses everything, in the middle of a handler."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.local.stub import Latency, Rule
from tests.support.bench import Bench
from tests.support.servers import OwnRedis
from tests.support.stub import PatientStub
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

CLOSED_S = 1.0
HESITANT_S = 3.0  # beyond the store's patience with an answer, twice


async def frozen(redis: OwnRedis, worker: Worker) -> None:
    """For longer than a call of it waits."""
    await asyncio.sleep(HESITANT_S)
    redis.thaw()


async def restarted(redis: OwnRedis, worker: Worker) -> None:
    """Empty; what was held is claimed again."""
    redis.kill()
    redis.start()
    await worker.event("claims_reasserted", timeout_s=60)


@pytest.mark.parametrize("what", [frozen, restarted])
async def test_a_handler_goes_on_where_it_was(
    mine: Bench, redis: OwnRedis, stub: PatientStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[..., object]
) -> None:
    """The model is called once although Redis is gone when the handler comes to its step; the step runs once, and the request completes."""
    monkeypatch.setenv("ONCE_NOTES", str(tmp_path / "notes"))
    stub.set_rules([Rule.model_validate({"name": "slow", "action": {"latency": Latency(fixed_ms=1_500).model_dump()}})])
    mine.ask("r")
    with Worker(mine.settings(stub.base_url, handler="tests.support.noting:handle", timeout_s=20), closed_s=CLOSED_S) as worker:
        await stub.wait_in_flight(1)
        redis.freeze()
        await stub.wait_in_flight(0)
        await what(redis, worker)  # type: ignore[misc]
        counts = await mine.finished(["r"], timeout_s=60)
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert counts == {("r", "completed"): 1}
    assert (tmp_path / "notes").read_text() == "r\n"
    assert stub.total_calls == 1
