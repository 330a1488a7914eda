"""A run over a broker in memory: what is sent, what ends a request, and what is asked again."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import orjson
import pytest

from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.gather import Gathering, Place, Run, Sheet, gathering
from headrace.produce import survey
from headrace.results import Asked, Told

INPUT = b"".join(b'{"request_id": "r%d", "prompt": "p%d"}\n' % (n, n) for n in range(5)) + b'{"request_id": "r1", "prompt": "p1"}\n'


class Broker:
    """`answer` says what llm_results gets for a request that was sent; `before` is what it had already."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.queue: list[Told] = []
        self.before: dict[bytes, Told] = {}
        self.asked: list[Mapping[bytes, Asked]] = []
        self.away = 0
        self.jump_after: int | None = None
        self.fingerprints: dict[bytes, bytes] = {}
        self.quiet_for: set[bytes] = set()

    def record(self, key: bytes, status: str = "completed", **fields: Any) -> Told:
        value = orjson.dumps({"request_id": key.decode(), "status": status, **fields})
        return Told(key, status, self.fingerprints[key], value, 0, 1_000)

    def answer(self, key: bytes) -> None:
        if key in self.before:
            self.queue.append(self.record(key, "duplicate", of="completed", since="2027-01-01T00:00:00.000Z"))
        elif key not in self.quiet_for:
            self.queue.append(self.record(key))


class FakeFollower:
    broker: Broker

    def __init__(self, _settings: Any, positions: Any, *, topic_id: str | None) -> None:
        self.positions, self.topic_id, self.trouble, self.jumped = dict(positions), "id", None, 0

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def poll(self, _wanted: Any, _timeout_s: float) -> list[Told]:
        found, self.broker.queue = self.broker.queue[:2], self.broker.queue[2:]
        self.positions[0] += len(found)
        if self.broker.jump_after is not None and self.positions[0] >= self.broker.jump_after:
            self.broker.jump_after, self.broker.queue, self.jumped = None, [], 1
            self.broker.quiet_for.clear()
        return found


class FakeWriter:
    broker: Broker

    def __init__(self, _settings: Any, *, on_taken: Any) -> None:
        self._on_taken = on_taken
        self._tags: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tag in self._tags:
            self._on_taken(tag)

    def send(self, output: Any, *, tag: int) -> None:
        self.broker.sent.append(output.key)
        self._tags.append(tag)
        self.broker.answer(output.key)


class FakeLookBack:
    broker: Broker

    def __init__(self, _settings: Any) -> None:
        pass

    def find(self, asked: Mapping[bytes, Asked]) -> Iterator[Told]:
        self.broker.asked.append(dict(asked))
        if self.broker.away:
            self.broker.away -= 1
            raise KafkaUnavailable("away")
        yield from (self.broker.before[key] for key in asked if self.broker.before[key].status == "completed")

    def since(self, fingerprints: Mapping[bytes, bytes], since_ms: int = 0) -> Iterator[Told]:
        yield from (self.broker.before[key] for key in fingerprints if key in self.broker.before)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    for name, fake in (("Follower", FakeFollower), ("Writer", FakeWriter), ("LookBack", FakeLookBack)):
        monkeypatch.setattr(fake, "broker", made, raising=False)
        monkeypatch.setattr(gathering, name, fake)
    found = survey(io.BytesIO(INPUT), "t", 1_000)
    made.fingerprints = {key: found.ids.fingerprint(key) for key in found.ids.index}
    return made


def gathered(folder: Path, **options: Any) -> tuple[bool, list[tuple[str, str]]]:
    """One process's run over the files in a folder: whether it is complete, and (id, status) of each line."""
    found = survey(io.BytesIO(INPUT), "t", 1_000)
    place = Place(folder / "out", folder)
    run = Run("d", 5, "input", "main", "results", positions={0: 0})
    with (folder / "out").open("a+b") as output, (folder / "journal").open("a+b") as journal:
        sheet = Sheet(found.ids.index, journal, output)
        sheet.take_up(None)
        complete = Gathering(Settings(), run, place, sheet, found.ids, **options).go(io.BytesIO(INPUT), found, 1_000)
        sheet.flush()
    lines = [orjson.loads(line) for line in (folder / "out").read_bytes().splitlines()]
    return complete, [(line["request_id"], line["status"]) for line in lines]


ALL = [(f"r{n}", "completed") for n in range(5)]


def test_each_request_is_sent_once_and_answered(broker: Broker, tmp_path: Path) -> None:
    """Also one that stands in the input twice."""
    assert gathered(tmp_path) == (True, ALL)
    assert broker.sent == [b"r0", b"r1", b"r2", b"r3", b"r4"]


def test_what_was_answered_before_is_looked_up_and_a_broker_that_is_away_asked_again(broker: Broker, tmp_path: Path) -> None:
    """Notices lead to the earlier answers; nothing is concluded from an outage; what is nowhere is gone."""
    broker.before = {b"r1": broker.record(b"r1"), b"r3": broker.record(b"r3", "elsewhere")}
    broker.away = 2
    complete, lines = gathered(tmp_path)
    assert (complete, lines) == (True, [*ALL[:3], ("r3", "gone"), ALL[4]])
    assert [set(asked) for asked in broker.asked] == [{b"r1", b"r3"}] * 3


def test_the_next_run_sends_only_what_the_broker_has_not(broker: Broker, tmp_path: Path) -> None:
    """A run that ended early is taken up: answered ones are kept, sent ones waited for, and no notice is saved as read that was not looked up."""
    broker.quiet_for = {b"r2"}
    complete, _ = gathered(tmp_path, timeout_s=0.05)
    assert not complete
    broker.queue.append(broker.record(b"r2"))
    assert gathered(tmp_path) == (True, ALL)
    assert broker.sent == [b"r0", b"r1", b"r2", b"r3", b"r4"]


def test_lost_results_are_asked_for_again(broker: Broker, tmp_path: Path) -> None:
    """Where the topic was made anew in between, copies of what has no end yet are sent, and nothing else."""
    broker.jump_after = 2
    assert gathered(tmp_path) == (True, ALL)
    assert broker.sent == [b"r0", b"r1", b"r2", b"r3", b"r4", b"r2", b"r3", b"r4"]


def test_without_notices_earlier_ends_come_first(broker: Broker, tmp_path: Path) -> None:
    """An answer of before is not sent; a failure of before is, but for one that was called less than a day ago."""
    failed = {"error": {}, "attempts": {"count": 1}}
    young = broker.record(b"r1", "failed", **failed)._replace(appended_ms=int(gathering.time.time() * 1000))
    broker.before = {b"r0": broker.record(b"r0"), b"r1": young, b"r2": broker.record(b"r2", "failed", **failed)}
    broker.answer = lambda key: broker.queue.append(broker.record(key))  # type: ignore[method-assign]
    complete, lines = gathered(tmp_path, look_back=True)
    assert (complete, lines[1], broker.sent) == (True, ("r1", "failed"), [b"r2", b"r3", b"r4"])


def test_a_notice_that_was_not_looked_up_is_read_again(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between a notice and its look-up, the saved positions are those of before the notice."""
    broker.before = {b"r0": broker.record(b"r0")}

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeLookBack, "find", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gathered(tmp_path)
    saved = tmp_path / "out.headrace.run.json"
    assert not saved.exists() or orjson.loads(saved.read_bytes())["positions"]["0"] == 0
