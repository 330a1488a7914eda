"""Seeks ends that lie behind: by the time a notice names, in its partition, and ever wider where they are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from headrace.config import Settings
from headrace.log import Span, scan, span
from headrace.results.told import Asked, Told, meaning, told

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
# A mark is written after the result it speaks of: a moment after, or as much later as Redis was away. Both clocks may differ a little.
MARGINS_MS = (MINUTE_MS, HOUR_MS)
_CHECK_EVERY = 5_000
Wide = Literal["partition", "topic"]


class LookBack:
    """Reads pieces of the topic on the caller's thread. `going` is asked now and then: False ends it early."""

    def __init__(self, settings: Settings, *, going: Callable[[], bool] = lambda: True) -> None:
        self._settings = settings
        self._topic = settings.topics.results
        self._going = going

    def find(self, asked: Mapping[bytes, Asked]) -> Iterator[Told]:
        """The ends that are there, in any order, each id once. Raises KafkaUnavailable.

        Of `waiting` ones only what came after `since` is an end, but for a completed one; they are not sought any wider.
        """
        missing = dict(asked)
        for margin_ms in MARGINS_MS:
            yield from self._step(missing, lambda some, margin_ms=margin_ms: self._near(some, margin_ms))  # type: ignore[misc]  # mypy and defaults
            if margin_ms == MINUTE_MS:
                missing = {key: what for key, what in missing.items() if what.of != "waiting"}
        yield from self._step(missing, lambda some: self._whole({what.partition for what in some.values()}))
        yield from self._step(missing, lambda _: self._whole(None))  # its partition was another before partitions were added

    def since(self, fingerprints: Mapping[bytes, bytes], since_ms: int = 0) -> Iterator[Told]:
        """Of each of these ids the last end, or the completed one, appended from `since_ms` on in any partition. Raises KafkaUnavailable."""
        asked = {key: Asked("dead", 0, 0, fingerprint) for key, fingerprint in fingerprints.items()}
        yield from self._step(asked, lambda _: span(self._settings, self._topic, since_ms=since_ms or None))

    def _step(self, missing: dict[bytes, Asked], spans: Callable[[dict[bytes, Asked]], Span]) -> Iterator[Told]:
        """The ends within a span; what is found is taken out of `missing`. A completed one is given at once: answers are large, notices small."""
        if not missing or not self._going():
            return
        failed: dict[bytes, Told] = {}
        for end in self._ends(missing, spans(missing)):
            if end.status != "completed":
                failed[end.key] = end
                continue
            failed.pop(end.key, None)
            del missing[end.key]  # nothing can follow it
            yield end
            if not missing:
                break
        for key in failed:
            del missing[key]
        yield from failed.values()

    def _ends(self, missing: Mapping[bytes, Asked], within: Span) -> Iterator[Told]:
        for count, record in enumerate(scan(self._settings, self._topic, within=within)):
            if count % _CHECK_EVERY == 0 and not self._going():
                return
            key = record.key
            if key is None or (what := missing.get(key)) is None:
                continue
            found = told(key, record.headers, record.value, record.partition, record.timestamp_ms)
            end = meaning(found, what.fingerprint) if found is not None else None
            if isinstance(end, Told) and end.status != "duplicate" and is_end(end, what):
                yield end

    def _near(self, missing: Mapping[bytes, Asked], margin_ms: int) -> Span:
        """By partition, what was appended around the times asked for."""
        found: Span = {}
        for partition in {what.partition for what in missing.values()}:
            some = [what for what in missing.values() if what.partition == partition]
            only = frozenset({partition})
            first = span(self._settings, self._topic, since_ms=min(what.since_ms for what in some) - margin_ms, partitions=only)
            if all(what.of != "waiting" for what in some):
                last = span(self._settings, self._topic, since_ms=max(what.since_ms for what in some) + MINUTE_MS, partitions=only)
                first = {p: (begin, last[p][0]) for p, (begin, _) in first.items()}
            found |= first
        return found

    def _whole(self, partitions: set[int] | None) -> Span:
        return span(self._settings, self._topic, partitions=None if partitions is None else frozenset(partitions))


def is_end(end: Told, what: Asked) -> bool:
    """Whether this is the end asked for: of one that was under way, a failure of before says nothing."""
    return end.status == "completed" or what.of == "dead" or (what.of == "waiting" and end.appended_ms >= what.since_ms)
