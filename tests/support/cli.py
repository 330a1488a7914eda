"""The command line in a process of its own, pointed at a bench's topics."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.bench import Bench

TOPICS_YAML = Path(__file__).parents[2] / "topics.yaml"
OURS = ("HEADRACE_", "OPENAI_", "SENTRY_")


def environment(bench: Bench, folder: Path, **more: str) -> dict[str, str]:
    """The variables of a process that works on the bench's topics; none of ours is inherited."""
    names = TOPICS_YAML.read_text("utf-8")
    for role, name in bench.names.model_dump().items():
        names, found = re.subn(rf"(?m)^(  {role}:.*\n    name: )\w+", rf"\g<1>{name}", names)
        assert found == 1, role
    (folder / "topics.yaml").write_text(names, "utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return inherited | {
        "HEADRACE_KAFKA_BOOTSTRAP": bench.kafka,
        "HEADRACE_REDIS_URL": bench.redis_url,
        "HEADRACE_NAMESPACE": bench.namespace,
        "HEADRACE_TOPICS": str(folder / "topics.yaml"),
        **more,
    }


async def headrace(
    variables: dict[str, str], *arguments: str, given: bytes = b"", timeout_s: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Run `headrace …` to its end."""
    command = [sys.executable, "-m", "headrace", *arguments]
    return await asyncio.to_thread(subprocess.run, command, env=variables, input=given, capture_output=True, timeout=timeout_s, check=False)
