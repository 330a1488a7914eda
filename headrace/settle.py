"""Settling: one thread turns outcomes into records and offsets, in one transaction each time. Nothing leaves the process otherwise.

What an outcome writes is `outputs`'; how a transaction may end is `transaction`'s; marks and hand-overs follow through the callbacks.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from headrace.assignment import Assignment, Snapshot
from headrace.committed import Committed
from headrace.config import LimitSettings
from headrace.errors import ErrorClass, Failure, HeadraceError
from headrace.instrument import Tell
from headrace.instrument.crash import words_of
from headrace.offsets import Commit
from headrace.offsets import Sequence as SettleSequence
from headrace.outcome import Dead, Settlement
from headrace.outputs import Outputs
from headrace.redact import mask
from headrace.refusals import Prepared, sort_refused, sort_shut
from headrace.tally import tally_of
from headrace.transaction import Ended, State, Transactions
from headrace.worker_thread import WorkerThread

IDLE_S = 0.25
HELD_S = 2.0
AGAIN_FROM_S, AGAIN_TO_S = 0.05, 1.0
PATIENCE_S = 120.0  # one transaction: each of its steps may take as long as the transaction lives, and the abort as well
_TP = tuple[str, int]
Report = Callable[[Sequence[Settlement]], None]


class Settler:
    """A lane's settle thread. `on_settled` gets what is known to be committed, `on_gone` what has to be handed over."""

    def __init__(
        self,
        lane: str,
        limits: LimitSettings,
        *,
        assignment: Assignment,
        transactions: Transactions,
        outputs: Outputs,
        committed: Committed,
        on_settled: Report,
        on_gone: Report,
        tell: Tell,
        stopping: threading.Event,
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._assignment = assignment
        self._transactions = transactions
        self._outputs = outputs
        self._committed = committed
        self._on_settled = on_settled
        self._on_gone = on_gone
        self._tell = tell
        self._stopping = stopping
        self._queue: deque[Settlement | threading.Event] = deque()
        self._held: deque[tuple[float, Settlement]] = deque()
        self._wake = threading.Event()
        self._incarnation = secrets.token_urlsafe(6)
        self._count = 0
        self._settling = 0
        self.thread = WorkerThread(f"{lane}-settle", self._work, last_words=self._failed, stopping=stopping, patience_s=PATIENCE_S)
        self.settled_at = time.monotonic()

    def start(self) -> None:
        """Start settling."""
        self.thread.start()

    def put(self, settlement: Settlement) -> None:
        """An outcome, to be settled soon. Thread-safe; never blocks."""
        self._queue.append(settlement)
        if not self._wake.is_set():
            self._wake.set()

    @property
    def waiting(self) -> int:
        """How many outcomes wait for a settle, those held back by the broker included."""
        return len(self._queue) + len(self._held) + self._settling

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything put so far is settled, handed over or held back; whether that was so in time."""
        if not self.thread.alive:
            return False
        passed = threading.Event()
        self._queue.append(passed)
        self._wake.set()
        return passed.wait(timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Settle what waits, then end; whether it ended in time. What is held back stays unsettled: its offsets do not move."""
        self._stopping.set()
        self._wake.set()
        return self.thread.stop(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread."""
        return self.thread.failure

    def _failed(self, error: BaseException) -> None:
        self._tell("settle_failed", {"lane": self._lane, "error": words_of(error)})

    def _work(self) -> None:
        try:
            self._transactions.open()
            while not (self._stopping.is_set() and not self._queue):
                self._wake.wait(IDLE_S)
                self._wake.clear()
                self._turn()
        finally:
            self._transactions.close()
            for event in [item for item in self._queue if isinstance(item, threading.Event)]:
                event.set()  # nobody waits for a thread that has ended

    def _turn(self) -> None:
        began = self.thread.turned()
        batch, passed = self._gather(began)
        if batch or self._assignment.behind():
            self._settling = len(batch)
            self._settle(batch)
            self._settling = 0
        for event in passed:
            event.set()
        if self._queue:
            self._wake.set()
        if batch and not self._stopping.is_set():
            time.sleep(max(0.0, self._limits.settle_interval_ms / 1000 - (time.monotonic() - began)))

    def _gather(self, now: float) -> tuple[list[Settlement], list[threading.Event]]:
        batch: list[Settlement] = []
        passed: list[threading.Event] = []
        while self._held and self._held[0][0] <= now:
            batch.append(self._held.popleft()[1])
        while self._queue and len(batch) < self._limits.settle_records:
            item = self._queue.popleft()
            if isinstance(item, threading.Event):
                passed.append(item)
            else:
                batch.append(item)
        return batch, passed

    def _settle(self, batch: list[Settlement]) -> None:
        """The batch in one transaction; those that must be tried apart, each in one of theirs."""
        apart = deque(self._settle_group([self._prepared(s) for s in batch if not s.alone]))
        apart.extend([s] for s in batch if s.alone)
        while apart:
            apart.extend(self._settle_group([self._prepared(s) for s in apart.popleft()]))

    def _prepared(self, settlement: Settlement) -> Prepared:
        """What cannot be written down is a dead letter that says so: one outcome must not end the thread that settles all."""
        try:
            return Prepared(settlement, self._outputs.of(settlement))
        except (TypeError, ValueError, AttributeError) as error:  # the last: a hand-over whose fields are of other types
            failure = Failure(ErrorClass.INTERNAL, mask(f"the outcome cannot be written: {error}"))
            attempts = getattr(settlement.outcome, "attempts", ())
            dead = settlement._replace(outcome=Dead(failure, settlement.job.record.timestamp_ms, attempts))
            return Prepared(dead, self._outputs.of(dead))

    def _settle_group(self, group: list[Prepared]) -> list[list[Settlement]]:
        """Settle until all of it is committed, gone, held back or to be tried apart; the latter are returned.

        1. one snapshot of ownership and group metadata  2. hand over what is gone  3. produce, send offsets with their
        maps, commit  4. resolve and report
        """
        group, apart = self._split_large(group)
        wait_s = AGAIN_FROM_S
        while group or (not apart and self._assignment.behind()):
            self.thread.turned()
            snapshot = self._assignment.snapshot  # 1
            group = self._hand_over(group, snapshot)  # 2
            ended = self._transact(group, snapshot)  # 3, 4
            if ended.state is State.COMMITTED:
                break
            if ended.error is not None:
                self._tell("settle_again", {"lane": self._lane, "error": ended.error, "outcomes": len(group)})
            group, refused = self._judge(group, ended)
            apart += refused
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, AGAIN_TO_S)
        return apart

    def _transact(self, group: list[Prepared], snapshot: Snapshot) -> Ended:
        self._count += 1
        sequence = SettleSequence(self._incarnation, self._count)
        settling = _offsets_by_partition(group)
        commits: dict[_TP, Commit] = {}

        def offsets() -> tuple[list[TopicPartition], Any] | None:
            now = self._assignment.snapshot  # the newest metadata, of the same ownership
            if now.version != snapshot.version:
                return None
            commits.update(self._assignment.commits(settling, snapshot, sequence))
            if settling.keys() - commits.keys():  # a partition went between the two lines above
                return None
            return [TopicPartition(t, p, c.frontier, c.metadata) for (t, p), c in commits.items()], now.metadata

        began = time.monotonic()
        ended = self._transactions.run([output for prepared in group for output in prepared.outputs], offsets)
        if ended.state is State.AMBIGUOUS and self._landed(commits, sequence):
            ended = Ended(State.COMMITTED)
        if ended.state is State.COMMITTED:
            self._assignment.committed(settling, commits, snapshot)
            self.settled_at = time.monotonic()
            if group:
                self._settling -= len(group)  # before the report: who is woken by it looks at `waiting`
                self._on_settled([p.settlement for p in group])
                tally = tally_of(p.settlement for p in group)
                self._tell("settled", {"lane": self._lane, "counts": tally.counts, "tally": tally, "seconds": self.settled_at - began})
        return ended

    def _landed(self, commits: Mapping[_TP, Commit], sequence: SettleSequence) -> bool:
        """After an ambiguous commit: the same transactional id is initialised anew, then the maps tell whether that settle is there."""
        self._transactions.open()
        wait_s = AGAIN_FROM_S
        while True:
            self.thread.turned()
            try:
                standings = self._committed.read(commits)
                break
            except HeadraceError as error:
                self._tell("committed_unreadable", {"group": self._lane, "error": str(error)})
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, AGAIN_TO_S)
        landed = any(s.map is not None and s.map.sequence == sequence for s in standings.values())
        self._tell("ambiguous_commit", {"lane": self._lane, "landed": landed, "settle": sequence.n})
        return landed

    def _hand_over(self, group: list[Prepared], snapshot: Snapshot) -> list[Prepared]:
        owned: list[Prepared] = []
        gone: list[Settlement] = []
        for prepared in group:
            record = prepared.settlement.job.record
            if snapshot.epochs.get((record.topic, record.partition)) == record.epoch:
                owned.append(prepared)
            else:
                gone.append(prepared.settlement)
        if gone:
            self._settling -= len(gone)
            self._on_gone(gone)
            self._tell("handed_over", {"lane": self._lane, "outcomes": len(gone)})
        return owned

    def _split_large(self, group: list[Prepared]) -> tuple[list[Prepared], list[list[Settlement]]]:
        """A record over its topic's limit before compression must be tried alone: only the broker can tell."""
        together: list[Prepared] = []
        alone: list[list[Settlement]] = []
        for prepared in group:
            if prepared.settlement.alone or not any(self._outputs.too_large(o) for o in prepared.outputs):
                together.append(prepared)
            else:
                alone.append([prepared.settlement._replace(alone=True)])
        return together, alone

    def _judge(self, group: list[Prepared], ended: Ended) -> tuple[list[Prepared], list[list[Settlement]]]:
        """Who goes on together and who must be tried apart; the rest is held back for a while, and told of once for each reason."""
        if not ended.refused and not ended.shut:
            return group, []
        found = sort_refused(group, ended.refused) if ended.refused else sort_shut(group, ended.error or "")
        self._settling -= len(found.held)
        self._held.extend((time.monotonic() + HELD_S, settlement) for settlement, _ in found.held)
        reasons = Counter(why for _, why in found.held)
        first = {why: settlement.position for settlement, why in reversed(found.held)}
        for why, outcomes in reasons.items():
            self._tell("settle_blocked", {"lane": self._lane, "error": why, "position": str(first[why]), "outcomes": outcomes})
        return found.together, [*([settlement] for settlement in found.alone), *found.apart]


def _offsets_by_partition(group: Iterable[Prepared]) -> dict[_TP, list[int]]:
    offsets: dict[_TP, list[int]] = {}
    for prepared in group:
        record = prepared.settlement.job.record
        offsets.setdefault((record.topic, record.partition), []).append(record.offset)
    return offsets
