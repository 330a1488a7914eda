"""All of a topic, not only what a reader happens to have by now."""

from __future__ import annotations

import asyncio

from confluent_kafka import Message

from headrace.log import scan
from tests.support.bench import Bench


async def everything(bench: Bench, role: str) -> list[Message]:
    """Every committed record that is in a topic now."""
    settings, topic = bench.settings("http://127.0.0.1:1/v1"), getattr(bench.names, role)
    count = await asyncio.to_thread(lambda: sum(1 for _ in scan(settings, topic)))
    return await bench.until(role, count)
