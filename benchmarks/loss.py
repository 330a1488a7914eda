"""`python -m benchmarks.loss`: the same requests through the loops of `benchmarks.loops` and through Headrace, with `kill -9` in between.

Counted are the answers, those missing, those given twice, and the calls to the model beyond one a request. Kills come after a number of
calls and a part of a call that a seed draws, so the arms meet the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import orjson
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.config import Settings, TopicNames
from headrace.loading import load
from headrace.local.stack import Stack
from headrace.local.stub import Latency, StubLLM
from headrace.log import scan
from headrace.outcome import Output
from headrace.topics import file as topicfile
from headrace.writer import Writer

REQUESTS = 400
LATENCY_MS = 200
KILLS = 8
QUIET_S = {"headrace": 45.0}  # longer than a takeover after a kill: nothing more will come
BETWEEN = 20  # calls of a new process before it is killed in turn
ARMS = {
    "after": "one by one, commit after",
    "auto": "one by one, automatic commit",
    "together": "64 at once, commit after",
    "headrace": "Headrace, 64 at once",
}


def main() -> int:
    """Run each arm, and print a line of JSON for it."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, Stack(Path(folder) / "stack") as stack:
        for arm, title in ARMS.items():
            sys.stdout.write(orjson.dumps({"arm": title, **asyncio.run(_arm(arm, stack, Path(folder)))}).decode() + "\n")
            sys.stdout.flush()
    return 0


async def _arm(arm: str, stack: Stack, folder: Path) -> dict[str, int | float]:
    async with StubLLM(latency=Latency(fixed_ms=LATENCY_MS)) as stub:
        environment, names = _prepared(arm, stack, folder, stub.base_url)
        settings = load({name: value for name, value in environment.items() if name.startswith(("HEADRACE_", "OPENAI_"))})
        _send(settings, names)
        rng = random.Random(1)  # noqa: S311 - repeatable, not secret
        kills = sorted(rng.sample(range(REQUESTS // 8, REQUESTS * 7 // 8), KILLS))
        before = 0
        began = time.monotonic()
        process = _started(arm, environment)
        try:
            for after in kills:
                await stub.wait_calls(max(after, before + BETWEEN))
                await asyncio.sleep(rng.uniform(0.0, LATENCY_MS / 1000))
                process.kill()
                process.wait()
                before = stub.total_calls
                process = _started(arm, environment)
            took = await _until_quiet(stub, began, QUIET_S.get(arm, 10.0))
        finally:
            process.kill()
            process.wait()
        answers = Counter(_id_of(record.value) for record in scan(settings, names.results))
    counted = {name: answers[name] for name in (f"id-{number}" for number in range(REQUESTS))}
    return {
        "requests": REQUESTS,
        "kills": KILLS,
        "lost": sum(1 for count in counted.values() if count == 0),
        "answered_twice": sum(1 for count in counted.values() if count > 1),
        "extra_calls": stub.total_calls - REQUESTS,
        "seconds": round(took, 1),
    }


def _prepared(arm: str, stack: Stack, folder: Path, model: str) -> tuple[dict[str, str], TopicNames]:
    name = f"loss-{arm}-{os.getpid()}"
    topics = folder / f"{name}.yaml"
    topics.write_text(topicfile.find(None).read_text("utf-8").replace("name: llm_", f"name: {name}_"), "utf-8")
    names = topicfile.names_in(topics)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "OPENAI_", "SENTRY_"))}
    environment = inherited | {
        "HEADRACE_KAFKA_BOOTSTRAP": stack.kafka.bootstrap,
        "HEADRACE_REDIS_URL": stack.redis.url,
        "HEADRACE_TOPICS": str(topics),
        "HEADRACE_NAMESPACE": name,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": model,
    }
    loop = {"LOOP_KAFKA": stack.kafka.bootstrap, "LOOP_GROUP": name, "LOOP_IN": names.main, "LOOP_OUT": names.results, "LOOP_MODEL": model}
    if arm == "headrace":
        command = [sys.executable, "-m", "headrace", "topics", "apply", "--execute"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    else:
        admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
        for future in admin.create_topics([NewTopic(topic, 10, 1) for topic in (names.main, names.results)]).values():
            future.result(60)
    return environment | loop, names


def _send(settings: Settings, names: TopicNames) -> None:
    with Writer(settings) as writer:
        for number in range(REQUESTS):
            key = f"id-{number}"
            writer.send(Output(names.main, key.encode(), orjson.dumps({"request_id": key, "prompt": "Say hello."})))


def _started(arm: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    module = ["headrace", "worker", "main", "retry"] if arm == "headrace" else ["benchmarks.loops", arm]
    return subprocess.Popen([sys.executable, "-m", *module], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _until_quiet(stub: StubLLM, began: float, quiet_s: float) -> float:
    """Until no call has come for `quiet_s`; the seconds until the last one."""
    calls, last = stub.total_calls, time.monotonic()
    while time.monotonic() - last < quiet_s:
        await asyncio.sleep(0.2)
        if stub.total_calls != calls:
            calls, last = stub.total_calls, time.monotonic()
    return last - began


def _id_of(value: bytes | None) -> str:
    result = orjson.loads(value or b"{}")
    return "" if result.get("status") == "duplicate" else str(result.get("request_id"))


if __name__ == "__main__":
    raise SystemExit(main())
