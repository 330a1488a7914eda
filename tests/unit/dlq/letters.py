"""Dead letters for the tests of the desk."""

from __future__ import annotations

from typing import Any

import orjson

from headrace.dlq.letter import Letter, read_letter
from headrace.envelope import Header, Record

DLQ = "llm_requests_dlq"
CANARY = "CANARY-my-secret-diary"
API_KEY = "sk-proj-Zx9CANARYKEY1234567890abcdefghijklmnop"


def record(
    *,
    request_id: str = "r-1",
    offset: int = 0,
    partition: int = 0,
    value: bytes | None = None,
    key: bytes | None = b"r-1",
    user_headers: tuple[Header, ...] = (),
    headers: dict[str, str] | None = None,
    **request: Any,
) -> Record:
    """A dead letter as the engine writes it; `headers` go without their prefix, `request` into the JSON."""
    said = {
        "origin": f"llm_requests_main/0/{offset}",
        "hop": "2",
        "retry_count": "3",
        "first_failed_at": "1790000000000",
        "dead_at": str(1_790_000_100_000 + offset),
        "error_class": "timeout",
        "error_code": "read_timeout",
        "error_message": f"no answer to '{CANARY}'",
        "provider": "openai",
        "model": "gpt-4o-mini",
        "attempts": orjson.dumps([{"class": "timeout", "latency_ms": 60_000, "provider": "openai"}] * 3).decode(),
    } | (headers or {})
    if value is None:
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": CANARY}]}
        value = orjson.dumps({"request_id": request_id, "body": body, **request})
    own: list[Header] = [("headrace_" + name, text.encode()) for name, text in said.items()]
    return Record(DLQ, partition, offset, 1, key, value, [*user_headers, *own], 1_790_000_200_000)


def letter(**parts: Any) -> Letter:
    """The letter in `record(**parts)`."""
    return read_letter(record(**parts))
