"""What the contracts of a store share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.stores import Bench, MemoryBench, RedisBench, opened


@pytest.fixture(params=["memory", "redis"])
async def bench(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[Bench]:
    """Give an open store, and delete what it wrote."""
    made: Bench = MemoryBench() if request.param == "memory" else RedisBench(request.getfixturevalue("redis_url"), namespace)
    await opened(made.store)
    yield made
    await made.lose()
    await made.store.close()
    if isinstance(made, RedisBench):
        await made.client.aclose()
