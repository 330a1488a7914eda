"""One run: what is missing is sent, and the ends are gathered until none is missing. Reading and writing take turns on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

from headrace.claims import Lifetimes
from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.gather.run import Place, Run, Sent
from headrace.gather.sheet import Sheet, own_line
from headrace.outcome import Output
from headrace.produce import Ids, Survey, id_of, lines
from headrace.results import Asked, Follower, LookBack, Result, Told, meaning
from headrace.results.told import document, line_of
from headrace.writer import DeliveryFailed, Writer

EVERY = 500  # lines between two looks at what has come
POLL_S = 0.25
SAVE_S = 5.0
QUIET_S = 30.0
GONE = "it ended before, and that end is no longer in the topic of results; under a new request_id it costs a new call"
Progress = Callable[[int, Sheet, str | None], None]


class Gathering:
    """`run` is what was saved; `source` the input, surveyed. `progress` hears (sent, sheet, trouble) several times a second.

    `look_back`: look for earlier ends before anything is sent, since copies get no notice (`duplicate_notices: false`).
    """

    def __init__(
        self,
        settings: Settings,
        run: Run,
        place: Place,
        sheet: Sheet,
        ids: Ids,
        *,
        progress: Progress = lambda _sent, _sheet, _trouble: None,
        look_back: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self._settings = settings
        self._run = run
        self._place = place
        self._sheet = sheet
        self._ids = ids
        self._progress = progress
        self._look_back = look_back
        self._until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._asked: dict[bytes, Asked] = {}
        self._taken: dict[int, int] | None = None
        self._saved_at_s = self._moved_at_s = time.monotonic()
        self._looked_everywhere = False

    def go(self, source: BinaryIO, survey: Survey, limit: int) -> bool:
        """Send and gather; whether every request has ended. Raises KafkaUnavailable where the broker takes nothing for 30 s.

        However it ends, what was gathered is written down, and taken up by the next run.
        """
        follower = Follower(self._settings, self._run.positions, topic_id=self._run.topic_id)
        sent = Sent(self._place.sent, len(self._ids))
        try:
            follower.open()
            self._taken = dict(follower.positions or {})
            if self._look_back:
                self._look_before(sent)
            while True:
                if follower.jumped:  # results were deleted unread: a copy of each request tells how it ended, or ends it
                    follower.jumped = 0
                    self._send_again(sent)
                self._send(source, survey, limit, follower, sent)
                if (complete := self._gather(follower, sent)) is not None:
                    return complete
        finally:
            self._save(follower)
            sent.close()
            follower.close()

    def _send(self, source: BinaryIO, survey: Survey, limit: int, follower: Follower, sent: Sent) -> None:
        writer = Writer(self._settings, on_taken=sent.add)  # type: ignore[arg-type]  # the tags are our own indices
        try:
            with writer:
                for count, (index, key, value) in enumerate(self._unsent(source, survey, limit, sent)):
                    writer.send(Output(self._settings.topics.main, key, value), tag=index)
                    if count % EVERY == EVERY - 1:
                        self._take(follower, 0.0)
                        self._turn(follower, sent)
                        if self._late():
                            return
        except DeliveryFailed as error:
            raise KafkaUnavailable(f"{error}; what was taken is remembered") from None

    def _unsent(self, source: BinaryIO, survey: Survey, limit: int, sent: Sent) -> Iterator[tuple[int, bytes, bytes]]:
        """Those the broker is not known to have, each id once."""
        source.seek(0)
        reached = -1
        for line in lines(source, limit):
            if line.number in survey.skip:
                continue
            key = id_of(line).encode()
            index = self._ids.index[key]
            if index <= reached:
                continue  # the same request once more
            reached = index
            if index not in sent and not self._sheet.ended(key):
                yield index, key, line.value

    def _gather(self, follower: Follower, sent: Sent) -> bool | None:
        """Whether every request has ended, or the time is over; None: results were lost on the way."""
        while len(self._sheet) < self._sheet.total:
            if self._late():
                return False
            if follower.jumped:
                return None
            came = self._take(follower, POLL_S)
            try:
                if self._asked and not came:
                    self._seek()
                elif not self._looked_everywhere and time.monotonic() - self._moved_at_s > QUIET_S:
                    self._look_everywhere()
            except KafkaUnavailable as error:
                follower.trouble = str(error)  # it is tried again in the next turn
            self._turn(follower, sent)
        return True

    def _take(self, follower: Follower, timeout_s: float) -> int:
        """What has come, noted; how many. An interrupt in between finds the positions of before."""
        found = follower.poll(self._ids.index, timeout_s)
        for record in found:
            if self._sheet.ended(record.key):
                continue
            said = meaning(record, self._ids.fingerprint(record.key))
            if isinstance(said, Told):
                self._end(said)
            elif said is not None:
                self._asked[record.key] = said
        self._taken = dict(follower.positions or {})
        return len(found)

    def _end(self, end: Told) -> None:
        self._moved_at_s = time.monotonic()
        self._sheet.add(end.key, Result.of(end).status, line_of(end))

    def _seek(self) -> None:
        """What notices say has ended before: found by its time, or gone. Raises KafkaUnavailable, with nothing forgotten."""
        asked = {key: what for key, what in self._asked.items() if not self._sheet.ended(key)}
        for end in LookBack(self._settings).find(asked):
            self._end(end)
        for key, what in asked.items():
            if what.of != "waiting":
                self._sheet.add(key, "gone", own_line(key, "gone", GONE))
        self._asked.clear()

    def _look_before(self, sent: Sent) -> None:
        """Ends of before, of those not sent: an answer, or a failure so young that a copy would be dropped without a word."""
        wanted = {key: self._ids.fingerprint(key) for key in self._sheet.missing() if self._ids.index[key] not in sent}
        for end in LookBack(self._settings).since(wanted):
            if end.status == "completed" or _still_marked(end):
                self._end(end)

    def _look_everywhere(self) -> None:
        """Nothing has come for long: once, look whether an answer was there before, and its notice is off where the workers run."""
        for end in LookBack(self._settings).since({key: self._ids.fingerprint(key) for key in self._sheet.missing()}):
            if end.status == "completed":
                self._end(end)
        self._looked_everywhere = True

    def _send_again(self, sent: Sent) -> None:
        for key in self._sheet.missing():
            sent.forget(self._ids.index[key])

    def _turn(self, follower: Follower, sent: Sent) -> None:
        self._sheet.flush()
        self._progress(sent.count, self._sheet, follower.trouble)
        if time.monotonic() - self._saved_at_s > SAVE_S:
            self._save(follower)

    def _save(self, follower: Follower) -> None:
        """A notice whose answer was not sought yet must be read again."""
        self._saved_at_s = time.monotonic()
        if self._place.output is None:
            return
        self._sheet.sync()
        if not self._asked and self._taken is not None:
            replace(self._run, positions=self._taken, topic_id=follower.topic_id, gathered=len(self._sheet), output_bytes=None).save(
                self._place
            )

    def _late(self) -> bool:
        return self._until_s is not None and time.monotonic() > self._until_s


def _still_marked(end: Told) -> bool:
    """Whether this failure's mark may still be in Redis: one that was called, and less than a day ago."""
    attempts = (document(end) or {}).get("attempts")
    count = attempts.get("count") if isinstance(attempts, dict) else None
    called = isinstance(count, int) and count > 0
    return called and end.appended_ms > time.time() * 1000 - Lifetimes().dead_ms
