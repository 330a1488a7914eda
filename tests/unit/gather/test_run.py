"""What a run remembers, and when it refuses to be taken up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import Refused
from headrace.gather import Place, Run, taken_up
from headrace.gather.run import Sent, alone

WANTED = Run("digest", 3, "input", "main", "results")


def begin() -> tuple[dict[int, int], str, str | None]:
    return {0: 7, 1: 9}, "topic-1", "cluster-1"


def here() -> str | None:
    return "cluster-1"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "out.jsonl", tmp_path)


def test_it_begins_where_the_results_stand_and_goes_on_there(place: Place) -> None:
    """The first time offsets are asked for, and saved; the second time they are read."""
    run = taken_up(place, WANTED, begin, here)
    assert (run.positions, run.topic_id) == ({0: 7, 1: 9}, "topic-1")

    def never() -> tuple[dict[int, int], str, str | None]:
        raise AssertionError("it was begun already")

    assert taken_up(place, WANTED, never, here) == run


@pytest.mark.parametrize(
    ("change", "named"),
    [({"digest": "x"}, "the input"), ({"order": "arrival"}, "--order"), ({"main": "x"}, "requests"), ({"results": "x"}, "results")],
)
def test_something_else_is_refused_by_name(place: Place, change: dict[str, str], named: str) -> None:
    """A changed input, order or topic is refused, and what changed is said."""
    taken_up(place, WANTED, begin, here)
    with pytest.raises(Refused, match=named):
        taken_up(place, replace(WANTED, **change), begin, here)  # type: ignore[arg-type]


def test_another_cluster_is_refused(place: Place) -> None:
    """The same topic names elsewhere: nothing is sent there again. A broker that tells no id cannot be told apart."""
    run = taken_up(place, WANTED, begin, here)
    assert taken_up(place, WANTED, begin, lambda: "cluster-1") == run
    assert taken_up(place, WANTED, begin, lambda: None) == run
    with pytest.raises(Refused, match="another Kafka cluster"):
        taken_up(place, WANTED, begin, lambda: "cluster-2")


def test_an_output_of_somebody_elses_is_not_touched(place: Place) -> None:
    """A file that no run began is refused; an empty one is not."""
    assert place.output is not None
    place.output.write_bytes(b"precious")
    with pytest.raises(Refused, match="exists"):
        taken_up(place, WANTED, begin, here)
    place.output.write_bytes(b"")
    taken_up(place, WANTED, begin, here)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 99}', '{"version": 1}', '{"version": 1, "positions": {"a": 1}}'])
def test_a_state_that_cannot_be_read_is_refused(place: Place, text: str) -> None:
    """Whatever stands in the file, it is an error with a remedy."""
    place.run.write_text(text)
    with pytest.raises(Refused):
        taken_up(place, WANTED, begin, here)


def test_one_process_a_run(place: Place) -> None:
    """A second one is refused while the first holds it, and let in afterwards."""
    with alone(place), pytest.raises(Refused, match="another process"), alone(place):
        pass
    with alone(place):
        pass


def test_what_the_broker_has_outlives_the_process(place: Place) -> None:
    """Each byte of the file stands for itself, without any closing; a request to be sent again is forgotten."""
    sent = Sent(place.sent, 5)
    for index in (1, 3, 3):
        sent.add(index)
    again = Sent(place.sent, 5)
    assert ([index for index in range(5) if index in again], again.count) == ([1, 3], 2)
    again.forget(3)
    assert (3 in again, again.count) == (False, 1)


def test_a_finished_run_leaves_its_account_alone(place: Place) -> None:
    """What was only there to be taken up goes away; how it ended stays."""
    run = taken_up(place, WANTED, begin, here)
    Sent(place.sent, 3).close()
    place.results.write_bytes(b"x\n")
    run.finish(place, {"completed": 3})
    assert (place.sent.exists(), place.results.exists()) == (False, False)
    assert taken_up(place, WANTED, begin, here).finished == {"completed": 3}
