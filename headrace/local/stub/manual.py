"""What `headrace stub-llm --help` says beside its options: a script to start from, the scenarios and every name a rule may use."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from headrace.local.stub.rule import DELIVERIES
from headrace.local.stub.signals import GROUPS

EXAMPLE: Final = """\
rules:                                # the first rule that meets a call decides; none: a plain answer
  - name: broken                      # dead at once, as invalid_request
    match: {prompt_contains: "[broken]"}
    action: invalid_request
  - name: busy                        # a tenth of the request ids, on their first call
    match: {share: 0.1, first: 1}
    action: {signal: rate_limited, retry_after_s: 2}
  - name: stuck                       # another 5 %: no byte ever comes, on no call
    match: {share: 0.05}
    action: hang
  - name: outage                      # everybody, from the 60th to the 90th second
    match: {from_s: 60, until_s: 90}
    action: {signal: unavailable, retry_after: none}
"""

SCENARIOS: Final[Mapping[str, str]] = MappingProxyType({
    "healthy": "every call is answered",
    "trade": "12 % rate limited and 8 % server errors on the first call, 4 % hang; a prompt with [broken] is refused",
    "outage": "every call gets 503",
    "menagerie": "half of the ids meet, on their first call, one of all signals and broken deliveries",
})  # fmt: skip


def manual(width: int = 78) -> str:
    """The text, in lines of at most `width`, but for the example's."""
    parts = ["scenarios:", *(_item(name, what, width) for name, what in SCENARIOS.items())]
    parts += ["", "a rules file (FILE of --rules), to start from:", "", textwrap.indent(EXAMPLE, "  ")]
    parts += ["a match may have: share, offset, first, attempts, model, endpoint, prompt_contains, request_ids, from_s, until_s."]
    parts += ["an action is a signal or a delivery by name, or {signal: …, delivery: …, retry_after_s: …, latency: {fixed_ms: …}, …}."]
    parts = [part if part.startswith(" ") or not part else textwrap.fill(part, width) for part in parts]
    parts += ["", "signals:", *(_item(name, _listed(signals), width) for name, signals in GROUPS.items())]
    parts += [_item("deliveries", _listed(DELIVERIES), width)]
    return "\n".join(parts)


def _item(name: str, text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent=f"  {name:16}", subsequent_indent=" " * 18, break_on_hyphens=False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
