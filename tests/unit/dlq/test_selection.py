"""A replay sends each request once, the newest letter of it, and nothing that cannot succeed, unless it is asked to."""

from __future__ import annotations

import pytest

from headrace.dlq.filters import Filters
from headrace.dlq.selection import Rules, select

from .letters import letter

ALL = Filters()
RULES = Rules(cap=5)


def test_only_the_newest_of_one_origin() -> None:
    """Of three dead letters of one origin, in any order, the one with the highest hop is sent and two are superseded."""
    one = [letter(offset=n, headers={"origin": "llm_requests_main/0/1", "hop": str(hop)}) for n, hop in ((1, 2), (2, 6), (3, 4))]
    selection = select(one, ALL, RULES)
    assert [position.offset for position in selection.chosen] == [2]
    assert (selection.superseded, selection.matched) == (2, 3)


def test_a_newer_letter_that_is_not_meant_still_supersedes() -> None:
    """An old timeout of a request that died again of something else is not sent: its hop was seen already."""
    old = letter(offset=1, headers={"origin": "llm_requests_main/0/1", "hop": "1"})
    new = letter(offset=2, headers={"origin": "llm_requests_main/0/1", "hop": "3", "error_class": "auth"})
    for letters in ([old, new], [new, old]):
        selection = select(letters, Filters(classes=frozenset({"timeout"})), RULES)
        assert not selection.chosen
        assert selection.superseded == 1


@pytest.mark.parametrize("name", ["undecodable", "too_large", "cancelled"])
def test_hopeless_classes_only_when_named(name: str) -> None:
    """Undecodable, too large and cancelled letters are skipped, unless --class names them."""
    letters = [letter(offset=1, headers={"error_class": name}), letter(offset=2)]
    assert [p.offset for p in select(letters, ALL, RULES).chosen] == [2]
    assert select(letters, ALL, RULES).skipped == {name: 1}
    assert [p.offset for p in select(letters, Filters(classes=frozenset({name})), RULES).chosen] == [1]


def test_cut_letters_never() -> None:
    """A letter whose value was cut to fit is not the request any more: it is never sent."""
    cut = letter(headers={"error_class": "too_large", "cut": "value 9000000 bytes, headers 0"})
    selection = select([cut], Filters(classes=frozenset({"too_large"})), RULES)
    assert not selection.chosen
    assert selection.skipped == {"cut": 1}


def test_the_cap_refuses_and_names() -> None:
    """What was replayed as often as the cap allows is refused by name; without a cap it is sent."""
    letters = [letter(offset=n, headers={"replay_count": str(n)}) for n in (4, 5, 6)]
    selection = select(letters, ALL, RULES)
    assert [p.offset for p in selection.chosen] == [4]
    assert [entry.position.offset for entry in selection.over_cap] == [5, 6]
    assert len(select(letters, ALL, Rules(cap=None)).chosen) == 3


def test_limit_takes_the_first_by_position() -> None:
    """The limit cuts in the order of partition and offset, so that a position can say where to go on."""
    letters = [letter(partition=p, offset=o, headers={"origin": f"m/{p}/{o}"}) for p, o in ((1, 1), (0, 9), (0, 2))]
    selection = select(letters, ALL, Rules(cap=5, limit=2))
    assert [(p.partition, p.offset) for p in selection.chosen] == [(0, 2), (0, 9)]
    assert selection.beyond_limit == 1


def test_past_deadlines_are_counted() -> None:
    """Letters past their deadline are counted, unless a new deadline is given."""
    letters = [letter(headers={"deadline_at": "1000"})]
    assert select(letters, ALL, Rules(cap=5, at_ms=2000)).expired == 1
    assert select(letters, ALL, Rules(cap=5, at_ms=2000, deadline_at_ms=3000)).expired == 0
