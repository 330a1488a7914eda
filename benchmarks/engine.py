"""The engine's own cost: transactions, claims and maps on, a handler that returns at once, or after 5 ms, 256 at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from headrace.loading import load
from headrace.local.stack import Stack
from headrace.log import Writer
from headrace.outcome import Output
from headrace.topics import file as topicfile

RUN_S = 300.0
FILLER = "Summarise this text. " + "lorem ipsum " * 60


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the lane."""

    name: str
    handler: str
    concurrency: int


ARMS = (
    Arm("returns at once, 64 at once", "benchmarks.handlers:at_once", 64),
    Arm("5 ms of work, 256 at once", "benchmarks.handlers:after_a_while", 256),
)


def measure(records: int, rounds: int, say: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each arm, one entry a round; the rounds alternate between the arms."""
    found: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, Stack(Path(folder) / "stack", say=say) as stack:
        for number in range(rounds):
            for arm in ARMS:
                say(f"round {number + 1} of {rounds}: {arm.name}")
                environment = _environment(stack, Path(folder), f"bench{number}{ARMS.index(arm)}", arm)
                found[arm.name].append(_run(environment, records))
    return found


def _environment(stack: Stack, folder: Path, name: str, arm: Arm) -> dict[str, str]:
    topics = folder / f"{name}.topics.yaml"
    topics.write_text(topicfile.find(None).read_text("utf-8").replace("name: llm_", f"name: {name}_"), "utf-8")
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"handler": arm.handler, "limits": {"concurrency": arm.concurrency}}), "utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "OPENAI_", "SENTRY_"))}
    return inherited | {
        "HEADRACE_KAFKA_BOOTSTRAP": stack.kafka.bootstrap,
        "HEADRACE_REDIS_URL": stack.redis.url,
        "HEADRACE_CONFIG": str(path),
        "HEADRACE_TOPICS": str(topics),
        "HEADRACE_NAMESPACE": name,
        "OPENAI_API_KEY": "none",
    }


def _run(environment: dict[str, str], records: int) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, "-m", "headrace", "topics", "apply", "--execute"], env=environment, check=True, capture_output=True, timeout=60
    )
    settings = load(environment)
    with Writer(settings) as writer:
        for number in range(records):
            key = f"{settings.namespace}-{number}"
            body = {"model": "stub", "messages": [{"role": "user", "content": FILLER}], "max_tokens": 64}
            value = orjson.dumps({"request_id": key, "body": body, "agent_id": f"a{number % 3}", "priority": "normal"})
            writer.send(Output(settings.topics.main, key.encode(), value))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lane", str(records)], env=environment, check=True, capture_output=True, text=True, timeout=RUN_S
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))
