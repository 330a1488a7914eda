"""`python -m benchmarks.claims_memory`: what a request id takes in Redis, by its state, written by the real store.

Capacity planning needs it (`docs/capacity.md`): an id is remembered for as long as its result is kept.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Sequence

import orjson
import redis

from headrace.claims import Claim, MarkState, Token
from headrace.envelope import Position
from headrace.local.folder import open_folder
from headrace.local.process import Startup
from headrace.local.redis import start_redis
from headrace.store import Store

IDS = 200_000
BATCH = 2_000
TOPIC = "llm_requests_main"
STATES: tuple[MarkState, ...] = ("waiting", "dead", "done")


def main() -> int:
    """Measure on a Redis of its own, and print a line of JSON a state."""
    os.environ.pop("HEADRACE_TEST_REDIS_URL", None)  # another's keys would be counted too
    with open_folder(None) as folder:
        server = start_redis(folder, Startup())
        try:
            asyncio.run(measure(server.url))
        finally:
            server.stop()
    return 0


async def measure(url: str) -> None:
    """Claim IDS ids, then mark them: uuids as ids, positions of eight digits, as in a topic that has been used for a while."""
    admin = redis.Redis.from_url(url)
    for state in ("claimed", *STATES):
        admin.flushdb()
        store = Store(url, "headrace", timeout_s=30.0)
        await store.open()
        await store.epochs.enter()
        await store.epochs.lease("benchmark")
        await store.epochs.reopen("benchmark")
        empty = _used(admin)
        for batch in _batches([_claim(number) for number in range(IDS)]):
            await store.claim(batch)
            if state != "claimed":
                await store.mark([(claim, state) for claim in batch])
        each = round((_used(admin) - empty) / IDS)
        found = {"state": state, "bytes_per_id": each, "ids": IDS, "redis": admin.info("server")["redis_version"]}
        sys.stdout.write(orjson.dumps(found).decode() + "\n")
        await store.close()


def _claim(number: int) -> Claim:
    position = Position(TOPIC, number % 10, 10_000_000 + number)
    return Claim(str(uuid.uuid4()), position, position, 0, Token("0123456789abcdef", 3), "f" * 24)


def _batches(claims: Sequence[Claim]) -> Sequence[Sequence[Claim]]:
    return [claims[start : start + BATCH] for start in range(0, len(claims), BATCH)]


def _used(admin: redis.Redis) -> int:
    return int(admin.info("memory")["used_memory"])


if __name__ == "__main__":
    raise SystemExit(main())
