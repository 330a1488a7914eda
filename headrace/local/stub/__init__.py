"""The project's own double of an LLM provider: fast, seeded, scripted, and counting every call."""

from headrace.local.stub.capacity import CapacitySpec
from headrace.local.stub.draw import draw
from headrace.local.stub.ledger import Entry
from headrace.local.stub.rule import Action, Latency, Match, Rule
from headrace.local.stub.ruleset import fault_for, load_rules, parse_rules
from headrace.local.stub.scenarios import BROKEN_MARKER, SCENARIOS, scenario
from headrace.local.stub.server import StubLLM

__all__ = [
    "BROKEN_MARKER",
    "SCENARIOS",
    "Action",
    "CapacitySpec",
    "Entry",
    "Latency",
    "Match",
    "Rule",
    "StubLLM",
    "draw",
    "fault_for",
    "load_rules",
    "parse_rules",
    "scenario",
]
