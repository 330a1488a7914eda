"""Sends chosen dead letters back to the main topic, in transactions, at a rate. Choosing them is `selection`'s work."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from headrace.dlq.ledger import Kind, Ledger, LedgerEvent, NoLedger
from headrace.dlq.letter import Letter
from headrace.dlq.selection import Entry
from headrace.envelope import Position
from headrace.outcome import Output
from headrace.trail import write_trail

BATCH_RECORDS = 500
BATCH_BYTES = 8 << 20


class RecordsRefused(Exception):
    """The topic will not take a record of the batch, by its size or form; none of the batch was written."""


class BatchWriter(Protocol):
    """Writes records in one transaction: when `write_batch` returns, all are committed."""

    def write_batch(self, outputs: Sequence[Output]) -> None:
        """Write all or none. Raises RecordsRefused; after any other error the batch may be committed all the same."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How letters are sent. `rate_s` is records a second, None: as fast as it goes. Times are epoch milliseconds.

    `roomier` is a topic for what `topic` refuses by its size: a request as large as main takes has no room for our headers there.
    """

    topic: str
    replay_id: str
    roomier: str | None = None
    rate_s: float | None = None
    deadline_at_ms: int | None = None


@dataclass(slots=True)
class Report:
    """What came of a replay. `refused` names letters that no topic takes, `gone` counts those retention has removed.

    `last` holds the last position sent of each partition: `--skip-until` takes them.
    """

    sent: int = 0
    refused: dict[Position, str] = field(default_factory=dict)
    gone: int = 0
    interrupted: bool = False
    last: dict[tuple[str, int], Position] = field(default_factory=dict)


class Replay:
    """One run. The replay id must be registered before `run`. Setting `stop` ends it after the batch in hand.

    `progress` hears how many are sent.
    """

    def __init__(
        self,
        writer: BatchWriter,
        terms: Terms,
        *,
        stop: threading.Event,
        ledger: Ledger | None = None,
        progress: Callable[[int], None] = lambda sent: None,
        now_ms: Callable[[], int],
    ) -> None:
        self._writer = writer
        self._terms = terms
        self._stop = stop
        self._ledger: Ledger = ledger or NoLedger()
        self._progress = progress
        self._now_ms = now_ms
        self.report = Report()

    def run(self, letters: Iterable[Letter], chosen: Mapping[Position, Entry]) -> Report:
        """Send those of `letters` that were chosen, each once.

        What the writer raises passes through; `report` then tells what was committed before. The batch in hand may be
        committed all the same: sending it again is harmless, as its claims make the second a Duplicate.
        """
        self._note("replay_started", fields={"chosen": len(chosen)})
        try:
            self._run((letter for letter in letters if letter.position in chosen), len(chosen))
        finally:
            self._note("replay_ended", fields={"sent": self.report.sent, "interrupted": self.report.interrupted})
        return self.report

    def _run(self, letters: Iterable[Letter], total: int) -> None:
        started_s = time.monotonic()
        for batch in _batches(letters, self._batch_records(), total):
            if self._stop.is_set():
                break
            self._send(batch)
            if self._handled < total:
                self._pace(started_s)
        self.report.interrupted = self._stop.is_set() and self._handled < total
        if not self.report.interrupted:
            self.report.gone = total - self._handled

    @property
    def _handled(self) -> int:
        return self.report.sent + len(self.report.refused)

    def _send(self, batch: list[Letter]) -> None:
        """The broker refuses whole batches, innocents included: halving finds the letter at fault."""
        try:
            self._write(batch)
        except RecordsRefused as refused:
            if len(batch) == 1:
                return self._send_roomier(batch[0], str(refused))
            self._send(batch[: len(batch) // 2])
            self._send(batch[len(batch) // 2 :])

    def _send_roomier(self, letter: Letter, why: str) -> None:
        if self._terms.roomier is not None:
            try:
                self._write([letter], replace(self._terms, topic=self._terms.roomier))
                return
            except RecordsRefused as refused:
                why = str(refused)
        self.report.refused[letter.position] = why
        self.report.last[letter.position[:2]] = letter.position

    def _write(self, batch: list[Letter], terms: Terms | None = None) -> None:
        at_ms = self._now_ms()
        self._writer.write_batch([replayed(letter, terms or self._terms, at_ms) for letter in batch])
        self.report.sent += len(batch)
        for letter in batch:
            self.report.last[letter.position[:2]] = letter.position
        self._note("replay_sent", positions=tuple(letter.position for letter in batch))
        self._progress(self.report.sent)

    def _batch_records(self) -> int:
        """A quarter of a second's worth: bursts no larger than that reach the main topic."""
        rate_s = self._terms.rate_s
        return BATCH_RECORDS if rate_s is None else max(1, min(BATCH_RECORDS, int(rate_s / 4)))

    def _pace(self, started_s: float) -> None:
        if self._terms.rate_s is not None:
            self._stop.wait(max(0.0, started_s + self.report.sent / self._terms.rate_s - time.monotonic()))

    def _note(self, kind: Kind, *, positions: tuple[Position, ...] = (), fields: Mapping[str, object] | None = None) -> None:
        self._ledger.record(LedgerEvent(kind, self._terms.replay_id, self._now_ms(), positions, fields or {}))


def replayed(letter: Letter, terms: Terms, at_ms: int) -> Output:
    """The record that is sent for a letter: key, value and the producer's headers as they were, ours replaced (DESIGN §5)."""
    trail = letter.trail
    fields: dict[str, str | int | None] = {
        "origin": str(trail.origin),
        "hop": trail.hop + 1,
        "retry_count": 0,
        "next_retry_at": at_ms,
        "deadline_at": terms.deadline_at_ms or trail.deadline_at_ms,
        "replay_id": terms.replay_id,
        "replay_count": trail.replay_count + 1,
        "replayed_at": at_ms,  # not a part of the trail: only the record that was sent has it, not what it becomes
    }
    return Output(terms.topic, letter.record.key, letter.record.value, write_trail(letter.record.headers, fields))


def new_replay_id(now_ms: int) -> str:
    """A replay id that sorts by time and cannot be guessed."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(8)}"


def _batches(letters: Iterable[Letter], records: int, total: int) -> Iterator[list[Letter]]:
    """Batches of at most so many records and about 8 MiB; ends after `total` letters without reading on."""
    batch: list[Letter] = []
    size = 0
    for seen, letter in enumerate(letters, start=1):
        batch.append(letter)
        size += len(letter.record.value or b"")
        if len(batch) >= records or size >= BATCH_BYTES or seen == total:
            yield batch
            batch, size = [], 0
        if seen == total:
            return
    if batch:
        yield batch
