"""Calls of the model against what asked for them: none before its due time, and how many nothing accounts for."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from headrace.audit.facts import Call, HandedOn, Source
from headrace.audit.ids import Ids
from headrace.audit.origins import UNSEEN, Origins
from headrace.audit.verdict import Broken, Rule

TOLERANCE_MS = 50
_APART_MS = 2_000  # clocks of the broker, of workers and of the model
_REFUSALS = frozenset({401, 402, 403, 429})  # where quota or key is at fault, a call spends no attempt


class Asks:
    """What may be called, in columns: every record of retry, and the sources that carry a count, a due time or a replay."""

    def __init__(self) -> None:
        self._plain = bytearray()
        self.slots, self.hops, self.counts = array("I"), array("I"), array("I")
        self.due_ms, self.at_ms = array("q"), array("q")
        self.written = bytearray()

    def source(self, slot: int, request: int, source: Source) -> None:
        """A record somebody sent."""
        if not source.spent and not source.due_ms and source.position == source.origin:
            if request >= len(self._plain):
                self._plain.extend(bytes(request + 1 - len(self._plain)))
            self._plain[request] = 1
        else:
            self._add(slot, source.hop, source.spent, source.due_ms, source.at_ms, written=False)

    def handed_on(self, slot: int, record: HandedOn) -> None:
        """A retry, or one deferred."""
        self._add(slot, record.hop, record.spent, record.due_ms, record.at_ms, written=True)

    def plain(self, request: int) -> bool:
        """Whether a record of that id may be called at once."""
        return request < len(self._plain) and bool(self._plain[request])

    def _add(self, slot: int, hop: int, count: int, due_ms: int, at_ms: int, *, written: bool) -> None:
        row = (slot, min(hop, 1 << 31), min(count, 1 << 31), due_ms, at_ms)
        for column, value in zip((self.slots, self.hops, self.counts, self.due_ms, self.at_ms), row, strict=True):
            column.append(value)
        self.written.append(written)


class CallRules:
    """Judges calls one by one; `extra` then says how many nothing accounts for."""

    def __init__(self, asks: Asks, origins: Origins, ids: Ids, broken: Broken) -> None:
        self._asks = asks
        self._ids = ids
        self._broken = broken
        self._by_count: dict[tuple[int, int], list[int]] = {}
        self._by_request: dict[int, list[int]] = {}
        for row, slot in enumerate(asks.slots):
            if (request := origins.ids[slot]) != UNSEEN:
                self._by_count.setdefault((request, asks.counts[row]), []).append(row)
                self._by_request.setdefault(request, []).append(row)
        self._refused: Counter[int] = Counter()
        self._unknown = 0
        self.total = 0

    def judge(self, calls: Iterable[Call]) -> None:
        """Count every call, and find those that came before their time."""
        for call in calls:
            self.total += 1
            request = self._ids.find(call.request_id) if call.request_id else None
            if request is None:
                self._unknown += 1
                continue
            self._ids.add("calls", request)
            self._refused[request] += call.status in _REFUSALS
            if call.attempt is not None and (early_ms := self._early_ms(request, call.attempt, call.wall_ms)) > TOLERANCE_MS:
                text = f"attempt {call.attempt} was called {early_ms} ms before its due time"
                self._broken(Rule.NEVER_EARLY, call.request_id, None, text)

    def extra(self) -> int:
        """Calls beyond the attempts that outcomes account for, and beyond refusals that spend none."""
        called, spent = self._ids.counts["calls"], self._ids.spent
        extra = self._unknown
        for request, calls in enumerate(called):
            over = calls - spent[request]
            if over > 0 and (refused := self._refused[request]):
                over -= min(refused, self._deferrals(request))
            extra += max(0, over)
        return extra

    def _early_ms(self, request: int, attempt: int, wall_ms: int) -> int:
        """How far the call came before the soonest record that could have asked for it."""
        rows = self._by_count.get((request, attempt - 1), [])
        if not rows or (attempt == 1 and self._asks.plain(request)):
            return 0
        due_ms = self._asks.due_ms
        standing = [row for row in rows if not any(self._supersedes(later, row, wall_ms) for later in rows)]
        return min((due_ms[row] for row in standing), default=0) - wall_ms

    def _supersedes(self, later: int, row: int, wall_ms: int) -> bool:
        """Whether `row` had been handed on as `later` well before the call: then it cannot have asked for it."""
        asks = self._asks
        return (
            asks.slots[later] == asks.slots[row]
            and asks.hops[later] > asks.hops[row]
            and asks.due_ms[row] <= asks.at_ms[later] <= wall_ms - _APART_MS  # a stamp from before it was due tells of a broken clock
        )

    def _deferrals(self, request: int) -> int:
        """How often a record of that id went on without an attempt."""
        asks = self._asks
        hops = {(asks.slots[row], asks.hops[row]): (asks.counts[row], asks.written[row]) for row in self._by_request.get(request, ())}
        return sum(written and count == hops.get((slot, hop - 1), (0, 0))[0] for (slot, hop), (count, written) in hops.items() if hop)
