"""The paths below `/_stub/`: what an experiment reads and changes while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

import orjson
from pydantic import ValidationError

from headrace.errors import ConfigError
from headrace.local.stub.capacity import Capacity, CapacitySpec
from headrace.local.stub.faults import field_faults
from headrace.local.stub.http import HttpRequest
from headrace.local.stub.ledger import Ledger
from headrace.local.stub.provider import Provider
from headrace.local.stub.reply import Reply, error_reply, json_reply
from headrace.local.stub.ruleset import parse_rules
from headrace.local.stub.scenarios import scenario

_PAGE: Final = 100_000


class Admin:
    """Answers admin requests. A refused change leaves everything as it was, and names the field."""

    def __init__(self, provider: Provider, ledger: Ledger, capacity: Capacity) -> None:
        self._provider = provider
        self._ledger = ledger
        self._capacity = capacity
        self._routes: Mapping[tuple[str, str], Callable[[HttpRequest], Reply]] = {
            ("GET", "calls"): lambda _: json_reply(ledger.calls),
            ("GET", "stats"): lambda _: json_reply(self.stats()),
            ("GET", "log"): self._log,
            ("GET", "rules"): lambda _: self._rules(),
            ("PUT", "rules"): self._put_rules,
            ("POST", "heal"): self._heal,
            ("POST", "reset"): self._reset,
            ("GET", "capacity"): lambda _: json_reply(self._capacity.spec.model_dump()),
            ("PUT", "capacity"): self._put_capacity,
        }

    def __call__(self, request: HttpRequest) -> Reply:
        """The reply to one admin request."""
        name = request.path.removeprefix("/_stub/")
        route = self._routes.get((request.method, name))
        if route is None:
            known = ", ".join(f"{method} /_stub/{path}" for method, path in self._routes)
            return error_reply(404, f"Not an admin path; there are {known}.")
        try:
            return route(request)
        except ConfigError as error:
            return error_reply(422, str(error))
        except orjson.JSONDecodeError:
            return error_reply(400, "The body is not valid JSON.")

    def stats(self) -> dict[str, object]:
        """The ledger's totals, and how full the capacity is."""
        capacity = self._capacity
        full = {"active": capacity.active, "waiting": capacity.waiting, **capacity.spec.model_dump()}
        return {**self._ledger.stats(), "seed": self._provider.ruleset.seed, "capacity": full}

    def _log(self, request: HttpRequest) -> Reply:
        given = parse_qs(request.query)
        numbers = {"since": 0, "limit": _PAGE}
        for name in numbers:
            text = given.get(name, ["0" if name == "since" else str(_PAGE)])[0]
            if not text.isascii() or not text.isdigit() or len(text) > 15:
                raise ConfigError([f"{name}: must be a whole number"])
            numbers[name] = int(text)
        entries = self._ledger.entries(numbers["since"], min(numbers["limit"], _PAGE))
        return Reply(200, b"".join(entry.line() for entry in entries), (), "application/x-ndjson")

    def _rules(self) -> Reply:
        rules = [rule.model_dump(mode="json", exclude_defaults=True) for rule in self._provider.ruleset.rules]
        return json_reply({"seed": self._provider.ruleset.seed, "rules": rules})

    def _put_rules(self, request: HttpRequest) -> Reply:
        document = orjson.loads(request.body)
        if isinstance(document, dict) and set(document) == {"scenario"}:
            self._provider.set_rules(scenario(str(document["scenario"])))
        else:
            self._provider.set_rules(parse_rules(document))
        return self._rules()

    def _heal(self, _: HttpRequest) -> Reply:
        self._provider.set_rules(())
        return self._rules()

    def _reset(self, _: HttpRequest) -> Reply:
        self._ledger.clear()
        return json_reply(self.stats())

    def _put_capacity(self, request: HttpRequest) -> Reply:
        try:
            self._capacity.set(CapacitySpec.model_validate(orjson.loads(request.body)))
        except ValidationError as error:
            raise ConfigError(field_faults(error, "capacity")) from error
        return json_reply(self._capacity.spec.model_dump())
