"""The open loop: each record goes when it is due, or, where Kafka's client is full, as soon after that as it can; its times count from when it was due."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.instrument.crash import words_of
from headrace.loadgen.figures import Figures
from headrace.loadgen.mix import Planned
from headrace.loadgen.sender import Sender
from headrace.results import Follower
from headrace.worker_thread import WorkerThread

SAY_S = 1.0
FULL_S = 0.002
STUCK_S = 30.0
POLL_S = 0.2
Say = Callable[[float, Figures, str | None], None]


@dataclass(frozen=True, slots=True)
class _Wanted(Container[bytes]):
    """Whose records are read: what has no end yet, and of what a copy was sent, whose notices come after its end."""

    due: dict[bytes, float]
    copied: set[bytes]

    def __contains__(self, key: object) -> bool:
        return key in self.due or key in self.copied


class Load:
    """`say` hears (seconds since the start, figures, trouble) once a second. `follow`: read the ends, and wait for them `patience_s`."""

    def __init__(self, settings: Settings, rate: float, *, follow: bool, say: Say, patience_s: float = 120.0) -> None:
        self._settings = settings
        self._follow = follow
        self._say = say
        self._patience_s = patience_s
        self.figures = Figures(rate)
        self._due: dict[bytes, float] = {}
        self._wanted = _Wanted(self._due, set())
        self._follower = Follower(settings)
        self._thread = WorkerThread("headrace-load-results", self._read, last_words=lambda _: None)
        self._began_s = self._said_at_s = 0.0

    def run(self, due: Iterator[float], records: Iterator[Planned]) -> None:
        """Until `due` ends. Raises KafkaUnavailable where the broker takes nothing for 30 s; interrupted, the figures stand as they are."""
        sender = Sender(self._settings, self._heard)
        self._began_s = time.monotonic()
        try:
            if self._follow:
                self._follower.open()
                self._thread.start()
            self._began_s = self._said_at_s = time.monotonic()
            for due_s, planned in zip(due, records, strict=False):
                self._send(sender, planned, due_s)
            self.figures.took_s = time.monotonic() - self._began_s
            self._finish(sender)
        finally:
            self.figures.took_s = self.figures.took_s or time.monotonic() - self._began_s
            sender.close()
            self._thread.stop(5.0)
            self._follower.close()
            if self._follow:
                self.figures.unanswered = len(self._due)

    def _send(self, sender: Sender, planned: Planned, due_s: float) -> None:
        self._tick(sender)
        while (ahead_s := due_s - self._now_s()) > 0:
            sender.wait(min(ahead_s, SAY_S / 4))
            self._tick(sender)
        if self._follow and planned.key is not None:  # before it goes: its end may be there at once
            if planned.kind == "duplicate":
                self._wanted.copied.add(planned.key)
            else:
                self._due[planned.key] = due_s
        full_s = 0.0
        while not sender.offer(planned, due_s):
            sender.wait(FULL_S)
            self._tick(sender)
            full_s += FULL_S
            if full_s > STUCK_S:
                raise self._settings.kafka.unavailable(f"took no record for {STUCK_S:g} s: {sender.trouble or 'no answer'}")
        sender.wait(0)
        self.figures.offered[planned.kind] += 1
        self.figures.late.add(max(0.0, self._now_s() - due_s))

    def _finish(self, sender: Sender) -> None:
        """Hear the broker out, and, if the ends are followed, wait for them."""
        until_s = time.monotonic() + self._patience_s
        while sender.drain(POLL_S) and time.monotonic() < until_s:
            self._tick(sender)
        while self._follow and self._due and time.monotonic() < until_s:
            if self._thread.failure is not None:
                raise KafkaUnavailable(f"results could not be followed: {words_of(self._thread.failure)}")
            time.sleep(POLL_S)
            self._tick(sender)

    def _read(self) -> None:
        while not self._thread.stopping.is_set():
            found = self._follower.poll(self._wanted, POLL_S)
            now_s = self._now_s()
            for record in found:
                if record.status == "duplicate":
                    self.figures.ends["duplicate"] += 1
                elif (due_s := self._due.pop(record.key, None)) is not None:
                    self.figures.ends[record.status] += 1
                    self.figures.answered.add(now_s - due_s)

    def _heard(self, due_s: float, reason: str | None) -> None:
        if reason is None:
            self.figures.taken.add(self._now_s() - due_s)
        else:
            self.figures.refused[reason] += 1

    def _tick(self, sender: Sender) -> None:
        now_s = time.monotonic()
        if now_s - self._said_at_s >= SAY_S:
            self._said_at_s = now_s
            self._say(now_s - self._began_s, self.figures, sender.trouble or self._follower.trouble)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s
