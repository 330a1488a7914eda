"""Which rule meets a call: a pure function of seed, request id and call, so that a test can foretell it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from headrace.errors import ConfigError
from headrace.local.stub.draw import draw
from headrace.local.stub.faults import field_faults
from headrace.local.stub.rule import Rule

_RULES = TypeAdapter(tuple[Rule, ...])


class RuleSet:
    """Rules in order, each share laid out on [0, 1). Raises `ConfigError` where the shares do not fit."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self.rules = tuple(rules)
        self.seed = seed
        self._slices: list[tuple[Rule, float, float]] = []
        self._drawn = False
        edge = 0.0
        for at, rule in enumerate(self.rules):
            if rule.match.share is None:
                self._slices.append((rule, 0.0, 1.0))
                continue
            low = edge if rule.match.offset is None else rule.match.offset
            edge = low + rule.match.share
            if edge > 1 + 1e-9:
                raise ConfigError([_beyond(at, rule, edge)])
            self._drawn = True
            self._slices.append((rule, low, edge))

    def choose(
        self,
        request_id: str,
        *,
        call: int = 1,
        model: str = "",
        endpoint: str = "chat",
        prompt: str = "",
        at_s: float = 0.0,
    ) -> Rule | None:
        """The first rule that meets this call, or None for a plain answer."""
        if not self._slices:
            return None
        chance = draw(self.seed, request_id) if self._drawn else 0.0
        for rule, low, high in self._slices:
            if low <= chance < high and rule.match.meets(
                request_id=request_id, call=call, model=model, endpoint=endpoint, prompt=prompt, at_s=at_s
            ):
                return rule
        return None


def _beyond(at: int, rule: Rule, edge: float) -> str:
    remedy = "lower a share, or give match.offset where rules may meet the same ids"
    return f"rules.{at}.match.share: rule {rule.name!r} ends at {edge:.3f} of the ids, beyond 1; {remedy}"


def fault_for(
    seed: int,
    request_id: str,
    rules: Sequence[Rule],
    *,
    call: int = 1,
    model: str = "",
    prompt: str = "",
    at_s: float = 0.0,
) -> Rule | None:
    """The rule a server with this seed and these rules applies to the `call`-th call (from 1) of `request_id`."""
    return RuleSet(rules, seed).choose(request_id, call=call, model=model, prompt=prompt, at_s=at_s)


def parse_rules(document: object) -> tuple[Rule, ...]:
    """Rules from a list, or from `{"rules": [...]}`. Raises `ConfigError` with one line per field at fault."""
    if isinstance(document, dict):
        unknown = sorted(str(key) for key in document if key != "rules")
        if unknown or "rules" not in document:
            raise ConfigError([f"{key}: not known here; give `rules: [...]`" for key in unknown] or ["rules: is missing"])
        document = document["rules"]
    if not isinstance(document, list | tuple):
        raise ConfigError(["rules: must be a list of rules, each with name, match and action"])
    try:
        rules = _RULES.validate_python(document)
    except ValidationError as error:
        raise ConfigError(field_faults(error, "rules")) from error
    names = [rule.name for rule in rules]
    doubled = [f"rules.{at}.name: {name!r} is used twice" for at, name in enumerate(names) if name in names[:at]]
    if doubled:
        raise ConfigError(doubled)
    return rules


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Rules from a YAML or JSON file. Raises `ConfigError`, naming the file, the field and the fault."""
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return parse_rules(document)
    except OSError as error:
        raise ConfigError([f"--rules {path}: cannot be read: {error.strerror}"]) from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError([f"--rules {path}: is not YAML or JSON: {' '.join(str(error).split())}"]) from error
    except ConfigError as error:
        raise ConfigError([f"{path}: {fault}" for fault in error.faults]) from error
