"""Scripts by name. Plain lists: who knows the seed foretells with `fault_for` what each request id will meet."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from headrace.document import nearest
from headrace.errors import ConfigError
from headrace.local.stub.rule import Action, Match, Rule
from headrace.local.stub.signals import SIGNALS

BROKEN_MARKER: Final = "[broken]"

TRADE: Final = (
    Rule(name="broken", match=Match(prompt_contains=BROKEN_MARKER), action=Action(signal="invalid_request")),
    Rule(name="busy", match=Match(share=0.12, first=1), action=Action(signal="rate_limited", retry_after_s=1)),
    Rule(name="stuck", match=Match(share=0.04), action=Action(delivery="hang")),
    Rule(name="flaky", match=Match(share=0.08, first=1), action=Action(signal="server_error")),
)

OUTAGE: Final = (Rule(name="outage", action=Action(signal="unavailable", retry_after="none")),)

_SIGNALS: Final = sorted(set(SIGNALS) - {"answer"})
_SLICE: Final = 0.5 / (len(_SIGNALS) + 7)

# Half of the ids meet something on their first call, each signal and each broken delivery with the same share.
MENAGERIE: Final = (
    *(Rule(name=name, match=Match(share=_SLICE, first=1), action=Action(signal=name)) for name in _SIGNALS),
    Rule(name="reset", match=Match(share=_SLICE, first=1), action=Action(delivery="reset")),
    Rule(name="close", match=Match(share=_SLICE, first=1), action=Action(delivery="close")),
    Rule(name="cut", match=Match(share=_SLICE, first=1), action=Action(delivery="cut")),
    Rule(name="cut_chunked", match=Match(share=_SLICE, first=1), action=Action(delivery="cut_chunked")),
    Rule(name="interim", match=Match(share=_SLICE, first=1), action=Action(delivery="interim", drip_ms=5)),
    Rule(name="bomb", match=Match(share=_SLICE, first=1), action=Action(delivery="bomb")),
    Rule(name="drip", match=Match(share=_SLICE, first=1), action=Action(delivery="drip", drip_ms=5, drip_bytes=8)),
)

SCENARIOS: Final = MappingProxyType[str, tuple[Rule, ...]]({"healthy": (), "trade": TRADE, "outage": OUTAGE, "menagerie": MENAGERIE})


def scenario(name: str) -> tuple[Rule, ...]:
    """The rules of a scenario. Raises `ConfigError` naming those there are."""
    if name not in SCENARIOS:
        hint = nearest(name[:64], SCENARIOS) or f"; there are {', '.join(SCENARIOS)}"
        raise ConfigError([f"scenario: {name[:64]!r} is not known{hint}"])
    return SCENARIOS[name]
