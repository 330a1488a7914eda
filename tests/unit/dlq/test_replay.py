"""A replay changes nothing but our own headers, sends each letter once, at the rate, and can be stopped and gone on with."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.dlq.filters import Filters
from headrace.dlq.ledger import LedgerEvent
from headrace.dlq.letter import Letter
from headrace.dlq.replay import BATCH_BYTES, RecordsRefused, Replay, Terms, new_replay_id, replayed
from headrace.dlq.selection import Rules, Selection, select
from headrace.outcome import Output

from .letters import letter

TERMS = Terms("llm_requests_main", "rp-1")
NOW = 1_800_000_000_000


class Fake:
    """Remembers the batches; refuses any batch with a value in `bad`, but for the topic `only`, and stops the run after `stop_after` batches."""

    def __init__(self, *, bad: bytes | None = None, only: str | None = None, stop_after: int = 0, fail_after: int = 0) -> None:
        self.batches: list[list[Output]] = []
        self.bad = bad
        self.only = only
        self.stop_after = stop_after
        self.fail_after = fail_after
        self.stop = threading.Event()

    @property
    def sent(self) -> list[Output]:
        return [output for batch in self.batches for output in batch]

    def write_batch(self, outputs: Sequence[Output]) -> None:
        if any(self.bad is not None and output.value == self.bad and output.topic != self.only for output in outputs):
            raise RecordsRefused("message too large")
        if self.fail_after and len(self.batches) >= self.fail_after:
            raise ConnectionError("gone")
        self.batches.append(list(outputs))
        if len(self.batches) == self.stop_after:
            self.stop.set()


class Notes:
    """A ledger that remembers."""

    def __init__(self) -> None:
        self.events: list[LedgerEvent] = []

    def record(self, event: LedgerEvent) -> None:
        self.events.append(event)


def many(count: int, partitions: int = 1) -> tuple[list[Letter], Selection]:
    letters = [letter(request_id=f"r-{n}", partition=n % partitions, offset=n) for n in range(count)]
    return letters, select(letters, Filters(), Rules(cap=5))


def run_of(fake: Fake, terms: Terms = TERMS, ledger: Notes | None = None) -> Replay:
    return Replay(fake, terms, stop=fake.stop, ledger=ledger or Notes(), now_ms=lambda: NOW)


def test_only_our_headers_change() -> None:
    """Key, value and the producer's headers, doubled and null ones too, stay; ours are replaced (DESIGN §5)."""
    users = (("x", b"\xff"), ("x", None), ("traceparent", b"00-abc"), ("x", b"2"))
    dead = letter(key=None, value=b"\x00\xff", user_headers=users, headers={"replay_count": "2", "deadline_at": "77", "next_retry_at": "5"})
    output = replayed(dead, TERMS, NOW)
    assert (output.topic, output.key, output.value) == ("llm_requests_main", None, b"\x00\xff")
    assert tuple(output.headers[:4]) == users
    assert dict(output.headers[4:]) == {
        "headrace_origin": b"llm_requests_main/0/0",
        "headrace_hop": b"3",
        "headrace_retry_count": b"0",
        "headrace_next_retry_at": str(NOW).encode(),
        "headrace_deadline_at": b"77",
        "headrace_replay_id": b"rp-1",
        "headrace_replay_count": b"3",
        "headrace_replayed_at": str(NOW).encode(),
    }


def test_deadline_is_overridden() -> None:
    """A new deadline replaces the old one, and without either there is none."""
    dead = letter(headers={"deadline_at": "77"})
    assert ("headrace_deadline_at", b"99") in replayed(dead, Terms("m", "r", deadline_at_ms=99), NOW).headers
    assert "headrace_deadline_at" not in dict(replayed(letter(), TERMS, NOW).headers)


def test_each_chosen_letter_once() -> None:
    """All chosen letters are sent, each once, and no letter that was not chosen, though the topic has grown meanwhile."""
    letters, selection = many(1_234)
    fake = Fake()
    grown = [*letters, letter(request_id="late", offset=99_999)]
    report = run_of(fake).run(grown, selection.chosen)
    assert report.sent == 1_234
    assert [dict(o.headers)["headrace_origin"] for o in fake.sent] == [str(one.origin).encode() for one in letters]
    assert max(len(batch) for batch in fake.batches) <= 500


def test_batches_are_bounded_in_bytes() -> None:
    """Large letters do not add up to transactions of any size."""
    letters = [letter(offset=n, value=bytes(BATCH_BYTES // 2)) for n in range(6)]
    fake = Fake()
    run_of(fake).run(letters, select(letters, Filters(), Rules(cap=5)).chosen)
    assert [len(batch) for batch in fake.batches] == [2, 2, 2]


def test_the_rate_is_kept() -> None:
    """40 records at 100 a second take at least 0.3 s, in batches of a quarter of a second."""
    letters, selection = many(40)
    fake = Fake()
    began = time.monotonic()
    run_of(fake, Terms("m", "r", rate_s=100.0)).run(letters, selection.chosen)
    assert time.monotonic() - began >= 0.24
    assert [len(batch) for batch in fake.batches] == [25, 15]


def test_stop_and_go_on() -> None:
    """Stopped in the middle, the report says how many were sent and where; going on from there sends exactly the rest."""
    letters, selection = many(1_500, partitions=3)
    first, second = Fake(stop_after=1), Fake()
    report = run_of(first).run(letters, selection.chosen)
    assert (report.sent, report.interrupted, report.gone) == (500, True, 0)
    rest = select(letters, Filters(after=tuple(report.last.values())), Rules(cap=5))
    again = run_of(second).run(letters, rest.chosen)
    assert (again.sent, again.interrupted) == (1_000, False)
    assert len({dict(o.headers)["headrace_origin"] for o in first.sent + second.sent}) == 1_500


def test_stop_does_not_wait_for_the_rate() -> None:
    """A stop is noticed at once, also while a slow rate waits."""
    letters, selection = many(10)
    fake = Fake(stop_after=1)
    began = time.monotonic()
    assert run_of(fake, Terms("m", "r", rate_s=0.01)).run(letters, selection.chosen).sent == 1
    assert time.monotonic() - began < 5


def test_an_error_leaves_the_report_right() -> None:
    """When writing fails, the error passes through, and the report holds what was committed before."""
    letters, selection = many(1_500)
    running = run_of(Fake(fail_after=2))
    with pytest.raises(ConnectionError):
        running.run(letters, selection.chosen)
    assert running.report.sent == 1_000
    assert [p.offset for p in running.report.last.values()] == [999]


def test_one_refused_letter_does_not_take_the_others() -> None:
    """The broker refuses whole batches: sent alone, only the letter at fault is refused, and named."""
    letters = [letter(offset=n, value=b"bad" if n == 7 else b"good") for n in range(20)]
    fake = Fake(bad=b"bad")
    report = run_of(fake).run(letters, select(letters, Filters(), Rules(cap=5)).chosen)
    assert (report.sent, len(fake.sent), report.gone) == (19, 19, 0)
    assert [position.offset for position in report.refused] == [7]


def test_what_main_has_no_room_for_goes_to_the_roomier_topic() -> None:
    """A letter as large as main takes would exceed it with our headers: it goes to the retry topic, alone, with the same headers."""
    letters = [letter(offset=n, value=b"large" if n == 7 else b"good") for n in range(20)]
    fake = Fake(bad=b"large", only="llm_requests_retry")
    terms = replace(TERMS, roomier="llm_requests_retry")
    report = run_of(fake, terms).run(letters, select(letters, Filters(), Rules(cap=5)).chosen)
    assert (report.sent, report.refused) == (20, {})
    (moved,) = [output for output in fake.sent if output.topic == "llm_requests_retry"]
    assert moved == replayed(letters[7], replace(TERMS, topic="llm_requests_retry"), NOW)


def test_what_retention_removed_is_counted() -> None:
    """Letters that vanished between choosing and sending are counted, not passed over."""
    letters, selection = many(10)
    assert run_of(Fake()).run(letters[4:], selection.chosen).gone == 4


def test_the_ledger_hears_before_and_after() -> None:
    """The ledger has the start before the first record, each batch's positions, and the end."""
    letters, selection = many(600)
    notes = Notes()
    run_of(Fake(), ledger=notes).run(letters, selection.chosen)
    assert [event.kind for event in notes.events] == ["replay_started", "replay_sent", "replay_sent", "replay_ended"]
    assert sum((event.positions for event in notes.events), ()) == tuple(selection.chosen)


def test_replay_ids_differ_and_fit_the_header() -> None:
    """Two replays of the same millisecond have different ids of at most 64 characters."""
    assert new_replay_id(NOW) != new_replay_id(NOW)
    assert len(new_replay_id(NOW)) <= 64
