"""What tests share: a real Kafka and a real Redis, started when first asked for, and a name of one's own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from headrace.local.folder import Folder, open_folder
from headrace.local.kafka import start_kafka
from headrace.local.process import Startup
from headrace.local.redis import start_redis

settings.register_profile("unhurried", settings(), deadline=None)  # a verdict does not depend on how busy the machine is
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def stack_folder() -> Iterator[Folder]:
    """Hold the temporary folder of this session's servers."""
    with open_folder(None) as folder:
        yield folder


@pytest.fixture(scope="session")
def kafka(stack_folder: Folder) -> Iterator[str]:
    """Give the bootstrap address: HEADRACE_TEST_KAFKA_BOOTSTRAP, else a broker of this session."""
    server = start_kafka(stack_folder, Startup())
    yield server.bootstrap
    server.stop()


@pytest.fixture(scope="session")
def redis_url(stack_folder: Folder) -> Iterator[str]:
    """Give the URL: HEADRACE_TEST_REDIS_URL, else a Redis of this session."""
    server = start_redis(stack_folder, Startup())
    yield server.url
    server.stop()


@pytest.fixture
def namespace() -> str:
    """Give a name no other test uses: for topics, groups and keys."""
    return f"test-{uuid.uuid4().hex[:12]}"
