"""Fixtures of the engine's tests; a test module imports those it asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.bench import Bench
from tests.support.stub import PatientStub


@pytest.fixture
def bench(kafka: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics of this test's own."""
    made = Bench(kafka, redis_url, namespace)
    yield made
    made.close()


@pytest.fixture
async def stub() -> AsyncIterator[PatientStub]:
    """Give a model that answers at once, until it is told otherwise."""
    async with PatientStub() as server:
        yield server
