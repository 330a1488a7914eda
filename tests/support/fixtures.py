"""Fixtures of the engine's tests; a test module imports those it asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.servers import OwnRedis, own_redis
from tests.support.stub import PatientStub


@pytest.fixture
def bench(kafka: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics of this test's own."""
    made = Bench(kafka, redis_url, namespace)
    yield made
    made.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnRedis]:
    """Give a Redis of this test's own."""
    with own_redis(tmp_path) as server:
        yield server


@pytest.fixture
def mine(kafka: str, redis: OwnRedis, namespace: str) -> Iterator[Bench]:
    """Give a bench that claims in that Redis."""
    made = Bench(kafka, redis.url, namespace)
    yield made
    made.close()


@pytest.fixture
async def stub() -> AsyncIterator[PatientStub]:
    """Give a model that answers at once, until it is told otherwise."""
    async with PatientStub() as server:
        yield server
