"""Which dead letters are open: dead and not answered since, however the two topics interleave, and within memory that is bounded."""

from __future__ import annotations

import random

import pytest

from headrace.dlq import open as open_letters
from headrace.dlq.letter import read_cause, read_letter
from headrace.dlq.open import OpenLetters
from headrace.envelope import Record

HOSTILE = (
    Record("dlq", 0, 7, 0, b"\xff", b"\xff\xfe", [("headrace_origin", b"main/1/2")], 5),
    Record("dlq", 0, 7, 0, None, None, [("headrace_origin", b"a b/1/2"), ("headrace_error_class", b"nonsense"), ("headrace_dead_at", b"-1")], -1),
    Record("dlq", 0, 7, 0, None, b'{"request_id": ["x"]}', [("headrace_error_class", b"\xff"), ("headrace_dead_at", b"9" * 40)], 10**18),
    Record("dlq", 0, 7, 0, b"k", b'{"request_id": "r-1"}', [("headrace_error_class", b"timeout"), ("headrace_origin", b"main/0/3"), ("headrace_dead_at", b"1700000000000")], 5),
    Record("dlq", 0, 7, 0, b"k", b'{"custom_id": "r-1"}', (), 5),
)  # fmt: skip


def die(
    letters: OpenLetters,
    number: int,
    *,
    offset: int | None = None,
    error_class: str = "timeout",
    partition: int = 0,
    died_ms: int | None = None,
    request_id: str | None = "",
) -> None:
    letters.died(
        partition, number if offset is None else offset, origin=f"main/0/{number}", request_id=f"r-{number}" if request_id == "" else request_id,
        error_class=error_class, died_ms=1_000 * number if died_ms is None else died_ms,
    )  # fmt: skip


def answer(letters: OpenLetters, number: int, origin: int | None = None) -> None:
    letters.answered(request_id=f"r-{number}".encode(), origin=f"main/0/{number if origin is None else origin}".encode())


def counted(letters: OpenLetters) -> tuple[dict[str, int], int | None]:
    standing = letters.standing(1.0, caught_up=True)
    return dict(standing.open), standing.oldest_ms


def test_a_letter_is_open_until_its_request_is_answered() -> None:
    """By its id, whatever the origin of the answer: a corrected request may have used the id again."""
    letters = OpenLetters()
    for number in (1, 2, 3):
        die(letters, number)
    assert counted(letters) == ({"timeout": 3}, 1_000)
    answer(letters, 1)
    answer(letters, 3, origin=77)
    assert counted(letters) == ({"timeout": 1}, 2_000)
    answer(letters, 2)
    assert counted(letters) == ({}, None)


def test_a_replay_that_dies_again_is_the_same_open_letter() -> None:
    """One request is counted once, with its last class, and is open since it first died."""
    letters = OpenLetters()
    die(letters, 1)
    die(letters, 1, offset=9, error_class="internal", died_ms=90_000)
    assert counted(letters) == ({"internal": 1}, 1_000)


def test_a_conflict_is_closed_by_its_own_answer_alone() -> None:
    """Its id is another request's, whose answer says nothing of the content that was refused."""
    letters = OpenLetters()
    die(letters, 1, error_class="id_conflict")
    answer(letters, 1, origin=50)
    assert counted(letters) == ({"id_conflict": 1}, 1_000)
    letters.answered(request_id=b"mended", origin=b"main/0/1")
    assert counted(letters)[0] == {}


def test_an_unreadable_letter_goes_by_its_origin() -> None:
    """What has no id can still be replayed, and be answered then."""
    letters = OpenLetters()
    die(letters, 1, request_id=None, error_class="undecodable")
    letters.answered(request_id=b"new-id", origin=b"main/0/1")
    assert counted(letters)[0] == {}


def test_an_answer_may_be_read_before_its_letter() -> None:
    """The two topics are read side by side: whatever the order, an answered letter is closed in the end."""
    letters = OpenLetters()
    answer(letters, 1)
    die(letters, 1)
    assert counted(letters)[0] == {}


def test_what_retention_takes_is_open_no_more() -> None:
    """Nobody can replay it; a newer letter of the same request stays."""
    letters = OpenLetters()
    for number in range(5):
        die(letters, number)
    die(letters, 0, offset=9)
    letters.deleted_before(0, 3)
    letters.deleted_before(7, 3)
    assert counted(letters) == ({"timeout": 3}, 3_000)


def test_memory_is_bounded() -> None:
    """Beyond the bound letters are counted and not kept; what is answered makes room again. A request that dies ever again takes no more room."""
    letters = OpenLetters(most=10)
    for number in range(15):
        die(letters, number)
    assert (counted(letters)[0], letters.untracked) == ({"timeout": 10}, 5)
    answer(letters, 0)
    die(letters, 99)
    assert counted(letters)[0] == {"timeout": 10}
    for offset in range(100, 1_000):
        die(letters, 99, offset=offset)
    assert sum(len(line) for line in letters._lines.values()) <= 31
    assert counted(letters) == ({"timeout": 10}, 1_000)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_counts_as_a_simple_set_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plainest model: a dictionary of what died and was not answered or deleted since."""
    monkeypatch.setattr(open_letters, "ANSWERED", 0)
    rng, letters = random.Random(seed), OpenLetters()
    model: dict[int, tuple[int, int]] = {}
    offset = start = 0
    for _ in range(3_000):
        number = rng.randrange(300)
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                die(letters, number, offset=offset, died_ms=offset * 1_000)
                model[number] = offset, model.get(number, (0, offset))[1]
                offset += 1
            case 4 | 5 | 6:
                answer(letters, number)
                model.pop(number, None)
            case 7:
                start = max(start, offset - rng.randrange(200))
                letters.deleted_before(0, start)
                model = {key: (last, first) for key, (last, first) in model.items() if last >= start}
        assert len(letters) == len(model)
        assert letters.standing(1.0, caught_up=True).open.get("timeout", 0) == len(model)


@pytest.mark.parametrize("record", HOSTILE)
def test_a_cause_is_what_the_whole_letter_says(record: Record) -> None:
    """The short reading and the long one agree, whatever the bytes are."""
    letter, cause = read_letter(record), read_cause(record)
    assert (cause.origin, cause.request_id, cause.error_class, cause.dead_at_ms) == (
        letter.origin, letter.request_id, letter.error_class, letter.dead_at_ms,
    )  # fmt: skip
