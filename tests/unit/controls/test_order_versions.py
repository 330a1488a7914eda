"""The form of orders and heartbeats in Redis: two versions of workers run beside each other during a deploy."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from headrace import roster
from headrace.controls.entry import Entry, Scope, parse
from headrace.roster import Member
from headrace.vitals import EndpointSample, LettersSample
from tests.support.golden import golden, same_as_golden

ORDERS = [
    Entry("pause", Scope(), "ada@host", "night", 1_800_000_000_000),
    Entry("pause", Scope(provider="openai", model="gpt|4o"), "ada@host", "the invoice is due", 1_800_000_000_000, 1_800_001_800_000),
    Entry(
        "cancel", Scope(agent="a", channel="c"), "ada@host", "runaway", 1_800_000_000_000, 1_801_209_600_000, {"main/0": 17, "retry/1": 0}
    ),
    Entry("ids", Scope(), "ada@host", "by mistake", 1_800_000_000_000, 1_801_209_600_000, {}, "1a2b-c3d4e5", 2),
]
LANE = {"in_flight": 3, "callers": 64, "waiting": 9, "unsettled": 2, "partitions": 4, "joined": True, "pauses": ["stop"]}
ENDPOINTS = (
    EndpointSample("openai", "127.0.0.1:8000", 3, None, None, healthy=None),
    EndpointSample("openai", "gpu-2:8000", 0, "timeout", 12.5, healthy=True),
)
LETTERS = LettersSample({"timeout": 2}, 1_800_000_000_000, 1)
MEMBER = Member("a1b2c3", "w-1", "host", 7, "0.1.0", 1_800_000_000_000, 1_800_000_003_000, {"main": LANE}, ENDPOINTS, LETTERS)


def test_orders_are_written_as_ever_and_read_as_ever() -> None:
    """Today's fields are the golden ones, and every golden one is the order it was."""
    same_as_golden("order.v1", {entry.key: entry.dump() for entry in ORDERS})
    for _, rows in golden("order.v*"):
        assert [parse(text) for text in rows.values()] == sorted(ORDERS, key=lambda entry: entry.key)


def test_heartbeats_are_written_as_ever_and_read_as_ever() -> None:
    """The same of what a worker says of itself."""
    same_as_golden("heartbeat.v1", orjson.loads(orjson.dumps(asdict(MEMBER))))
    for _, said in golden("heartbeat.v*"):
        assert roster.parse(orjson.dumps(said).decode()) == MEMBER
