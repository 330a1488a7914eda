"""What became of each record, read from the topics and from the model's own count of calls. Knows nothing of the engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from headrace import log
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.local.demo.plan import Planned


class Follower:
    """Follows a topic in a thread of its own, and keeps key, value and headers of what is committed there."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self.rows: list[tuple[bytes, bytes, dict[str, bytes]]] = []
        self.failure: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name=f"follow-{topic}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def _run(self) -> None:
        try:
            for record in log.scan(self._settings, self._topic, to_end=False, timeout_s=3600):
                self.rows.append((record.key or b"", record.value or b"", {n: v or b"" for n, v in record.headers}))
        except HeadraceError as error:
            self.failure = error


@dataclass(frozen=True, slots=True)
class Found:
    """One record's traces: statuses in `llm_results` in order, classes in the dead letters, calls the model counted."""

    results: tuple[str, ...]
    letters: tuple[str, ...]
    calls: int

    def is_end(self, planned: Planned, *, after_replay: bool) -> bool:
        """Whether exactly one end is there, and it is the planned one."""
        completed = self.results.count("completed")
        if planned.error_class is not None:
            return completed == 0 and self.letters == (planned.error_class,)
        letters_expected = 1 if after_replay and planned.fault == "time-out" else 0
        return completed == 1 and len(self.letters) == letters_expected

    @property
    def settled(self) -> bool:
        """Whether any end is there."""
        return "completed" in self.results or bool(self.letters)


def tally(results: Follower, letters: Follower, calls: Mapping[str, int], plans: Sequence[Planned]) -> dict[str, Found]:
    """The traces of every planned record, by key."""
    statuses: dict[str, list[str]] = {p.key: [] for p in plans}
    classes: dict[str, list[str]] = {p.key: [] for p in plans}
    for _, value, _ in list(results.rows):
        row = orjson.loads(value)
        statuses.setdefault(row["request_id"] or "?", []).append(row["status"])
    for key, _, headers in list(letters.rows):
        classes.setdefault(key.decode(errors="replace"), []).append(headers.get("headrace_error_class", b"?").decode())
    return {p.key: Found(tuple(statuses[p.key]), tuple(classes[p.key]), calls.get(p.key, 0)) for p in plans}


def strangers(results: Follower, letters: Follower, plans: Sequence[Planned]) -> list[str]:
    """Keys in the dead letters, and ids in the results, that nobody sent."""
    known = {p.key for p in plans}
    ids = {orjson.loads(value)["request_id"] for _, value, _ in list(results.rows)} - {None}
    keys = {key.decode(errors="replace") for key, _, _ in list(letters.rows)}
    return sorted((ids | keys) - known)


def lateness_ms(retries: Iterable[tuple[str, int, int]], calls: Iterable[Mapping[str, object]]) -> list[int]:
    """How late each retry was called, in ms; negative would be too early. Retries are (key, calls spent, due ms), from the retry topic."""
    called: dict[tuple[str, int], int] = {}
    for entry in calls:
        called.setdefault((str(entry["request_id"]), int(str(entry["attempt"]))), int(str(entry["wall_ms"])))
    due = {(key, spent + 1): due_ms for key, spent, due_ms in retries}
    return sorted(at_ms - due[which] for which, at_ms in called.items() if which in due)


def faults_by_kind(plans: Sequence[Planned], found: Mapping[str, Found], *, after_replay: bool) -> Counter[str]:
    """How many records of each kind did not end as planned."""
    return Counter(p.fault for p in plans if not found[p.key].is_end(p, after_replay=after_replay))
