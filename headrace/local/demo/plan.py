"""The demo's requests, and what each of them must come to: the faults are a pure function of seed and request id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from headrace.local.stub import Action, Match, Rule, fault_for
from headrace.local.stub.scenarios import BROKEN_MARKER

TOPICS: Final = ("the tides", "a mill", "sourdough", "the moon", "beekeeping", "a lighthouse", "chess openings", "the Nile")
TASKS: Final = ("Explain {0} to a child.", "Write two lines on {0}.", "What is hard about {0}?", "Name a book on {0}.")
CALLS_ON_TIMEOUT: Final = 3

RULES: Final = (
    Rule(name="broken_prompt", match=Match(prompt_contains=BROKEN_MARKER), action=Action(signal="invalid_request")),
    Rule(name="rate_limited", match=Match(share=0.12, first=1), action=Action(signal="rate_limited", retry_after_s=1)),
    Rule(name="rate_limited_for_longer", match=Match(share=0.03, first=1), action=Action(signal="rate_limited", retry_after_s=6)),
    Rule(name="time-out", match=Match(share=0.04), action=Action(delivery="hang")),
    Rule(name="server_error", match=Match(share=0.08, first=1), action=Action(signal="server_error")),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One record of the demo: its bytes, and its end. `error_class` None: it is completed after `calls` calls."""

    key: str
    value: bytes
    fault: str
    error_class: str | None
    calls: int


def plan(count: int, seed: int) -> list[Planned]:
    """`count` different requests: most are good, 3 % have a prompt the model refuses, 1 % are no requests at all."""
    return [_planned(number, seed) for number in range(count)]


def _planned(number: int, seed: int) -> Planned:
    key = f"demo-{number:05d}"
    if number % 200 == 50:
        return Planned(key, b"\xff\xfe not JSON", "not JSON", "undecodable", 0)
    if number % 200 == 150:
        return Planned(key, orjson.dumps({"request_id": key, "temperature": 1}), "neither body nor prompt", "invalid_request", 0)
    subject = TASKS[number % len(TASKS)].format(TOPICS[number // len(TASKS) % len(TOPICS)])
    prompt = f"{subject} (request {number}){' ' + BROKEN_MARKER if number % 33 == 7 else ''}"
    value = orjson.dumps({"request_id": key, "prompt": prompt, "agent_id": f"agent-{number % 3}", "metadata": {"number": str(number)}})
    rule = fault_for(seed, key, RULES, prompt=prompt)
    return Planned(key, value, *_end(rule))


def _end(rule: Rule | None) -> tuple[str, str | None, int]:
    match rule.name if rule else None:
        case None:
            return "none", None, 1
        case "broken_prompt":
            return "broken prompt", "invalid_request", 1
        case "time-out":
            return "time-out", "timeout", CALLS_ON_TIMEOUT
        case name:
            return str(name).replace("_", " "), None, 2


def healed(plans: Sequence[Planned]) -> list[Planned]:
    """What must be true after the time-outs were replayed against a healed model: completed, with one more call."""
    return [Planned(p.key, p.value, p.fault, None, p.calls + 1) if p.error_class == "timeout" else p for p in plans]
