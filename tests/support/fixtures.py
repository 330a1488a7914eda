"""Fixtures of the engine's tests; a test module imports those it asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from headrace.local.stub import StubLLM
from tests.support.bench import Bench


@pytest.fixture
def bench(kafka: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics of this test's own."""
    made = Bench(kafka, redis_url, namespace)
    yield made
    made.close()


@pytest.fixture
async def stub() -> AsyncIterator[StubLLM]:
    """Give a model that answers at once, until it is told otherwise."""
    async with StubLLM() as server:
        yield server
