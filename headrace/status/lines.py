"""The picture as NDJSON: a line a lane, worker, endpoint, pause and order, then Redis, dead letters, warnings and the summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from headrace.controls.entry import Entry
from headrace.dlq.console import iso
from headrace.status.picture import Picture, warnings


def lines(picture: Picture) -> Iterator[dict[str, object]]:
    """Each with its `kind`. Times are RFC 3339."""
    for lag in picture.lags:
        more = {"in_flight": picture.in_flight(lag.lane), "workers": picture.workers(lag.lane)}
        yield {"kind": "lane", **asdict(lag), **(more if picture.held is not None else {})}
    for member in picture.members:
        times = {"since": iso(member.since_ms), "seen": iso(member.at_ms), "silent": member.silent(picture.now_ms)}
        facts = {"incarnation": member.incarnation, "instance": member.instance, "host": member.host, "pid": member.pid}
        yield {"kind": "worker", **facts, "version": member.version, **times, "lanes": dict(member.lanes)}
    yield from ({"kind": "endpoint", **asdict(one)} for one in picture.endpoints())
    for pause in picture.pauses:
        yield {
            "kind": "pause",
            **pause.scope._asdict(),
            "error_class": pause.error_class or None,
            "code": pause.code or None,
            "until": iso(pause.until_ms),
        }
    for order in picture.orders:
        yield {"kind": "order", **_order(order)}
    if picture.held is not None:
        held = picture.held
        closed, beat = (None if at_ms is None else iso(at_ms) for at_ms in (held.closed_since_ms, held.beat_ms))
        yield {
            "kind": "redis",
            "epoch": held.epoch,
            "admission": "open" if closed is None else "closed",
            "closed_since": closed,
            "beat": beat,
        }
    if picture.letters is not None:
        letters = picture.letters
        oldest = None if letters.oldest_ms is None else iso(letters.oldest_ms)
        counts = {"total": letters.total, "open": letters.open, "by_class": dict(letters.by_class)}
        yield {"kind": "dead_letters", **counts, "oldest": oldest, "whole": letters.whole}
    found = list(warnings(picture))
    for text in found:
        yield {"kind": "warning", "text": text}
    yield {"kind": "summary", "namespace": picture.namespace, "at": iso(picture.now_ms), "away": dict(picture.away), "warnings": len(found)}


def _order(order: Entry) -> dict[str, object]:
    named = {name: value for name, value in order.scope._asdict().items() if value is not None}
    until = None if order.until_ms is None else iso(order.until_ms)
    facts: dict[str, object] = {
        "action": "pause" if order.kind == "pause" else "cancel",
        "scope": named,
        "by": order.who,
        "reason": order.why,
    }
    return facts | {"since": iso(order.since_ms), "until": until} | ({"ids": order.left} if order.kind == "ids" else {})
