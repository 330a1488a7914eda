"""Following dead letters and results beside the lane: what fails is told once and begun anew, and never ends the worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace import topics
from headrace.dlq.follower import Follower
from headrace.topics.drift import fit
from tests.support.bench import Bench

pytest_plugins = ["tests.support.fixtures"]

WAIT_S = 40.0
ORIGIN = [("headrace_origin", b"main/0/1"), ("headrace_error_class", b"timeout"), ("headrace_dead_at", b"1700000000000")]


class Told:
    """Waits for events of a thread."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self._changed = threading.Condition()

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        with self._changed:
            self.events.append((name, fields))
            self._changed.notify_all()

    def wait(self, name: str) -> Mapping[str, Any]:
        """The first event of a name."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.named(name), WAIT_S), f"no {name} in {WAIT_S} s: {self.events}"
            return self.named(name)[0]

    def named(self, name: str) -> list[Mapping[str, Any]]:
        return [fields for told, fields in self.events if told == name]


def test_what_cannot_be_read_is_told_once_and_tried_again(bench: Bench) -> None:
    """Without the results nothing is counted, not even half; once they are there, everything is, with hostile letters among them."""
    bench.send(b'{"request_id": "r-1"}', headers=ORIGIN, role="dlq")
    bench.send(b"\xff", headers=[("headrace_origin", b"\xff"), ("headrace_error_class", b"bait")], role="dlq")
    bench.send(None, role="dlq")
    bench.flush()
    name = f"{bench.namespace}-late"
    settings = bench.settings("http://127.0.0.1:1/v1")
    settings = settings.model_copy(update={"topics": settings.topics.model_copy(update={"results": name})})
    told = Told()
    follower = Follower(settings, tell=told, again_s=0.2)
    follower.start()
    try:
        assert name in told.wait("letters_unfollowed")["error"]
        assert not follower.standing.caught_up
        bench.create(replace(fit(topics.wanted(settings), 1, None)["results"], partitions=2))
        assert told.wait("letters_counted")["open"] == 3
        assert len(told.named("letters_unfollowed")) == 1
    finally:
        assert follower.stop(20)
        bench.delete(name)
    assert dict(follower.standing.open) == {"timeout": 1, "other": 2}
