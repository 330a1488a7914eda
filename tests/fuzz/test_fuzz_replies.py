"""Mutations of what a provider answers and of what an operator writes: a bounded value, or the one declared error."""

from __future__ import annotations

import random
import re

import orjson

from headrace.config import DEFAULT_POLICIES
from headrace.document import parse
from headrace.envelope import ENDPOINTS, Position, Response, Trail
from headrace.errors import ConfigError
from headrace.llm.errors import classify_reply
from headrace.llm.hints import should_retry
from headrace.llm.transport import Reply
from headrace.local.stub.signals import SIGNALS
from headrace.policy import RetryAt, decide
from headrace.redact import MESSAGE_BYTES, mask, without_echo
from tests.support.fuzzing import fuzz

NOW = 1_800_000_000_000
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
ANSWER = {
    "id": "1", "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "text": "x", "message": {"role": "assistant", "content": "x"}}],
    "data": [{"embedding": [0.5]}], "status": "completed", "usage": {"total_tokens": 3},
}  # fmt: skip
HEADERS = b"retry-after: 60\nretry-after-ms: 1500\ndate: Sun, 06 Nov 1994 08:49:37 GMT\nx-should-retry: true\nx-request-id: req_1\n\n"
DATED = HEADERS.replace(b"60", b"Sun, 06 Nov 1994 08:51:38 GMT")
DOCUMENT = b"""namespace: a
kafka: {bootstrap: "h:1", config: {sasl.password: 'x'}}
providers:
  - &one {name: openai, api_key: sk-x, headers: {X: y}}
  - <<: *one
    name: "b\\u00e4"
policy:
  timeout: !!map
    calls: 3
    at: 2027-01-31
redis: |
  text
"""


def test_fuzz_replies() -> None:
    """Any status, headers and body, at any endpoint, are an answer that can be written, or a failure within its bounds from which a decision follows."""
    bodies = [orjson.dumps(ANSWER), *(orjson.dumps(s.document) for s in SIGNALS.values() if s.document), b"<html><body>no", b"no"]
    corpus = [b"200 " + HEADERS + bodies[0], *(str(status).encode() + b" " + DATED + body for status in (200, 429, 500) for body in bodies)]
    rng = random.Random(1)

    def target(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        status, _, rest = head.partition(b" ")
        lines = [line.partition(b":") for line in rest.split(b"\n")]
        headers = {name.decode("latin-1").lower(): value.decode("utf-8", "surrogateescape").strip() for name, _, value in lines}
        number = int(status) if status.isdigit() and len(status) == 3 else 200
        endpoint = ENDPOINTS[len(data) % len(ENDPOINTS)]
        found = classify_reply(Reply(number, headers, body, 1), endpoint, provider="p", model="m", now_ms=NOW)
        if isinstance(found, Response):
            orjson.dumps([found.usage, found.model, found.finish_reason, found.provider_request_id])
            return "answer"
        assert found.called
        assert len(found.message.encode()) <= MESSAGE_BYTES
        assert not CONTROL.search(found.message + (found.code or ""))
        assert should_retry(headers) in (True, False, None)
        decision = decide(
            found, Trail(Position("t", 0, 0)), policy=DEFAULT_POLICIES[found.error_class], latency_ms=1, now_ms=NOW,
            deadline_ms=None, longest_delay_ms=86_400_000, rng=rng,
        )  # fmt: skip
        if isinstance(decision, RetryAt):
            assert NOW + (found.retry_after_ms or 0) <= decision.due_ms <= NOW + 86_400_000
        return found.error_class.value

    assert len(fuzz(target, corpus).outcomes) > 8


def test_fuzz_masking() -> None:
    """Any text is masked to a bounded line without control characters, and masking it once more, or against any prompt, makes it no longer."""
    corpus = [
        b"Incorrect key: sk-abc \"quoted\" Bearer x redis://:p@h 'it's' password=1 0123456789abcdef0123456789abcdef",
        "«ü» “x” ‘y’".encode(),
    ]

    def target(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        masked = mask(text)
        assert len(masked.encode()) <= MESSAGE_BYTES
        assert not CONTROL.search(masked)
        half = text[: len(text) // 2]
        assert len(without_echo(masked, [half, {"a": text}])) <= len(masked) + masked.count(" ") + 2
        return str(masked.count("…"))

    fuzz(target, corpus)


def test_fuzz_configuration() -> None:
    """Any file is a document, or one error that quotes nothing of it."""

    def target(data: bytes) -> str:
        try:
            return "mapping" if parse(data.decode("utf-8", "replace"), "f.yaml").data else "empty"
        except ConfigError as error:
            return "fault" if all(fault.startswith("f.yaml") for fault in error.faults) else f"no place: {error}"

    corpus = [DOCUMENT, b"a: &a [*a]", b"? [x]\n: y", *DOCUMENT.splitlines(keepends=True)]
    assert fuzz(target, corpus).outcomes.keys() == {"mapping", "empty", "fault"}


def test_a_document_of_aliases_of_aliases_is_read_in_no_time() -> None:
    """Nine times nine, nine times over: each node is looked at once, however often it is named."""
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert len(parse("\n".join(lines), "f.yaml").data) == 30
