"""The loops that people write, each run as a process by `benchmarks.loss`: `python -m benchmarks.loops ARM`. Measuring tools, not examples."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import aiohttp
import orjson
from confluent_kafka import Consumer, Message, Producer

BATCH = 64


def main() -> None:
    """Run one of the loops until it is killed."""
    arm = sys.argv[1]
    settings = {
        "bootstrap.servers": os.environ["LOOP_KAFKA"],
        "group.id": os.environ["LOOP_GROUP"],
        "group.instance.id": os.environ["LOOP_GROUP"],  # a process that comes back need not wait for the session to end
        "auto.offset.reset": "earliest",
        "enable.auto.commit": arm == "auto",
        "auto.commit.interval.ms": 500,
    }
    consumer = Consumer(settings)
    consumer.subscribe([os.environ["LOOP_IN"]])
    producer = Producer({"bootstrap.servers": os.environ["LOOP_KAFKA"], "linger.ms": 0})
    asyncio.run({"auto": _one_by_one, "after": _one_by_one, "together": _together}[arm](consumer, producer, commits=arm != "auto"))


async def _one_by_one(consumer: Consumer, producer: Producer, *, commits: bool) -> None:
    """Poll, call, produce; and commit, or leave that to the client."""
    async with aiohttp.ClientSession() as session:
        while True:
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            await _handle(session, producer, message)
            if commits:
                producer.flush()
                consumer.commit(message, asynchronous=False)


async def _together(consumer: Consumer, producer: Producer, *, commits: bool) -> None:
    """A batch at once, then one commit for all of it: the usual way to be faster."""
    assert commits, "it would be slower, and lose as much"
    async with aiohttp.ClientSession() as session:
        while True:
            messages = [message for message in consumer.consume(BATCH, 0.2) if not message.error()]
            if messages:
                await asyncio.gather(*(_handle(session, producer, message) for message in messages))
                producer.flush()
                consumer.commit(asynchronous=False)


async def _handle(session: aiohttp.ClientSession, producer: Producer, message: Message) -> None:
    request: Mapping[str, str] = orjson.loads(message.value() or b"")
    body = {"model": "stub", "messages": [{"role": "user", "content": request["prompt"]}]}
    headers = {"Idempotency-Key": request["request_id"], "Authorization": "Bearer none"}
    async with session.post(f"{os.environ['LOOP_MODEL']}/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
    producer.produce(os.environ["LOOP_OUT"], orjson.dumps({"request_id": request["request_id"], "answer": answer}), key=message.key())
    producer.poll(0)


if __name__ == "__main__":
    main()
