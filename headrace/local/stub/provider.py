"""What a provider decides about one call: its fate by the rules, and its line in the log. Sends nothing itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.local.stub.call import ENDPOINTS, BadCall, Call, parse_call
from headrace.local.stub.capacity import Capacity
from headrace.local.stub.draw import draw
from headrace.local.stub.http import HttpRequest
from headrace.local.stub.ledger import Ledger
from headrace.local.stub.render import render
from headrace.local.stub.reply import Reply, error_reply, json_reply
from headrace.local.stub.rule import Action, Latency, Rule
from headrace.local.stub.ruleset import RuleSet

MAX_REQUEST_ID: Final = 512
_ANSWER: Final = Action()


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be said, how, and when. `tokens` is the work it takes; None does not pass through the capacity."""

    reply: Reply
    action: Action
    delay_s: float = 0.0
    tokens: int | None = None


class Provider:
    """One provider: rules, a default latency, a capacity. Changing the rules counts from the next call on."""

    def __init__(self, ledger: Ledger, capacity: Capacity | None, *, seed: int, latency: Latency | None) -> None:
        self._ledger = ledger
        self._latency = latency
        self._run = f"{seed & 0xFFFF:04x}"
        self.capacity = capacity
        self.ruleset = RuleSet((), seed)

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Replace the rules. Raises `ConfigError` if their shares do not fit."""
        self.ruleset = RuleSet(rules, self.ruleset.seed)

    def answer(self, request: HttpRequest) -> Plan | Reply:
        """A plan for a call of the model, else the reply to anything that is none."""
        path = request.path.removeprefix("/v1").rstrip("/")
        if request.method == "POST" and path in ENDPOINTS:
            return self._plan(ENDPOINTS[path], request)
        if path == "/models" or path.startswith("/models/"):
            return _models(path) if request.method in ("GET", "HEAD") else _not_allowed("GET")
        return _not_allowed("POST") if path in ENDPOINTS else error_reply(404, "There is nothing at this path.")

    def _plan(self, endpoint: str, request: HttpRequest) -> Plan:
        request_id = request.headers.get("idempotency-key") or None
        attempt = _attempt(request.headers.get("x-headrace-attempt"))
        if request_id is not None and len(request_id) > MAX_REQUEST_ID:
            reply = error_reply(400, f"The Idempotency-Key is longer than {MAX_REQUEST_ID} characters.")
            return self._refuse(reply, None, attempt, 1, endpoint)
        number = self._ledger.count(request_id)
        try:
            call = parse_call(endpoint, request.body)
        except BadCall as bad:
            reply = error_reply(400, bad.message, param=bad.param)
            return self._refuse(reply, request_id, attempt, number, endpoint)
        plan, rule = self._decide(call, request_id or f"anonymous-{self._ledger.total}", number)
        name = None if rule is None else rule.name
        if plan.tokens is not None and self.capacity is not None and not self.capacity.has_room:
            plan, name = self._overflow(self.capacity, call), "capacity"
        self._ledger.record(
            request_id=request_id,
            attempt=attempt,
            call=number,
            endpoint=endpoint,
            rule=name,
            action=plan.action.label,
            status=plan.reply.status if plan.action.answers else None,
        )
        return plan

    def _decide(self, call: Call, key: str, number: int) -> tuple[Plan, Rule | None]:
        rule = self.ruleset.choose(key, call=number, model=call.model, endpoint=call.endpoint, prompt=call.prompt, at_s=self._ledger.at_s)
        action = _ANSWER if rule is None else rule.action
        reply, tokens = render(action, call, self._number(), time.time())
        latency = action.latency or self._latency
        delay_s = 0.0
        if latency is not None:
            chance = 0.0 if latency.fixed_ms is not None else draw(self.ruleset.seed, key, f"latency:{number}")
            delay_s = latency.seconds(chance)
        works = self.capacity is not None and action.answers and reply.status == 200
        return Plan(reply, action, delay_s, tokens if works else None), rule

    def _overflow(self, capacity: Capacity, call: Call) -> Plan:
        action = Action(signal=capacity.spec.overflow)
        return Plan(render(action, call, self._number(), time.time())[0], action)

    def _refuse(self, reply: Reply, request_id: str | None, attempt: int | None, number: int, endpoint: str) -> Plan:
        self._ledger.record(
            request_id=request_id,
            attempt=attempt,
            call=number,
            endpoint=endpoint,
            rule=None,
            action="bad_call",
            status=reply.status,
        )
        return Plan(reply, _ANSWER)

    def _number(self) -> str:
        return f"{self._run}{self._ledger.next_seq:012x}"


def _attempt(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else None


def _models(path: str) -> Reply:
    model = path.removeprefix("/models").removeprefix("/") or "stub-model"
    entry = {"id": model, "object": "model", "created": 1_700_000_000, "owned_by": "headrace-stub"}
    return json_reply({"object": "list", "data": [entry]} if path == "/models" else entry)


def _not_allowed(allowed: str) -> Reply:
    reply = error_reply(405, f"Only {allowed} is allowed here.")
    return Reply(reply.status, reply.body, (("allow", allowed),))
