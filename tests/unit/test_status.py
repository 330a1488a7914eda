"""What the status warns of, and how it is told."""

from __future__ import annotations

from dataclasses import asdict, replace
from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console

from headrace.controls import Entry, Scope
from headrace.envelope import Position
from headrace.pauses import Pause
from headrace.pauses import Scope as Shut
from headrace.roster import SILENT_MS, Member, parse
from headrace.status import Picture, screen
from headrace.status.kafka import Deaths
from headrace.status.lines import lines
from headrace.status.picture import Endpoint, Held, Lag, Letters, warnings
from headrace.vitals import EndpointSample, LettersSample

NOW = 1_800_000_000_000
LANE = {"in_flight": 3, "callers": 64, "waiting": 0, "unsettled": 0, "partitions": 2, "joined": True, "pauses": ["paused by an operator"]}
MEMBER = Member("abc", "w-1", "node", 7, "0.1.0", NOW - 60_000, NOW, {"main": LANE, "retry": LANE})
OUT = EndpointSample("p", "a:80", 2, "timeout", 5.0, healthy=False)
WELL = Picture("ns", NOW, (Lag("main", "t", 5), Lag("wheels", "l", 2)), Letters(0, 0, {}), Held("e", None, NOW), (MEMBER,), parked_cap=100)


def shown(picture: Picture, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(screen(picture, width=width))
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"away": {"redis": "refused"}}, "redis cannot be asked: refused"),
        ({"members": ()}, "main: 5 wait, and no worker says that it reads them"),
        ({"members": (), "away": {"redis": "refused"}}, "redis cannot be asked"),
        ({"members": (replace(MEMBER, at_ms=NOW - SILENT_MS - 1),)}, "worker w-1 on node has said nothing for 15 s"),
        ({"held": Held("e", NOW - 9_000, NOW)}, "admission has been closed for 9 s"),
        ({"lags": (Lag("main", "t", 5, lost=2),)}, "2 records fell out of t"),
        ({"lags": (Lag("main", "t", 5, near_retention=(1, 3)),)}, "partition 1, 3 of t is near the end of its retention"),
        ({"lags": (Lag("retry", "t", 80),)}, "main stops reading at 100"),
        ({"members": (replace(MEMBER, endpoints=(OUT,)), MEMBER)}, "a:80 of p is left out by 1 of 1 workers: timeout"),
        ({"orders": (Entry("pause", Scope(agent="a"), "ada", "why", NOW),)}, None),
        ({"orders": (Entry("pause", Scope(), "ada", "why", NOW),)}, "everything is paused until it is resumed, by ada: why"),
        (
            {"orders": (Entry("pause", Scope("p", "m"), "ada", "why", NOW, NOW + 1000),)},
            "provider p, model m is paused until 2027-01-15T08:00:01Z, by ada: why",
        ),
        (
            {"pauses": (Pause(Shut("p", "k", None), NOW + 1000, 1, "quota", "insufficient_quota"),)},
            "provider p, key k, is shut until 2027-01-15T08:00:01Z, then a probe: quota insufficient_quota",
        ),
        (
            {"pauses": tuple(Pause(Shut("p", "k", m), NOW + 1000, 1) for m in "ab")},
            "provider p, key k: 2 models are shut until 2027-01-15T08:00:01Z, then a probe: quota or credentials",
        ),
        ({"orders": (Entry("ids", Scope(), "ada", "why", NOW, name="n", left=0),)}, "cancel them again"),
    ],
)
def test_warnings(change: dict[str, Any], said: str | None) -> None:
    """Each thing that needs someone, and nothing where all is well; without Redis nobody is said to be missing."""
    found = list(warnings(replace(WELL, **change)))
    assert (said is None) == (found == [])
    if said is not None:
        assert said in "\n".join(found)
    assert len(found) <= 3


def test_no_word_is_broken_on_80_columns() -> None:
    """Dates are as short as they are clear; what can be done without is left out."""
    member = replace(MEMBER, instance=None, incarnation="0123456789ab", host="0123456789ab", pid=123)
    orders = (
        Entry("pause", Scope("openai", "gpt-4o-mini"), "operator", "bill unpaid", NOW, NOW + 999_000),
        Entry("pause", Scope("openai"), "operator", "bill unpaid", NOW, NOW + 86_400_000),
    )
    pauses = (Pause(Shut("openai", "0a1b2c3d", None), NOW + 1000, 1, "quota", "insufficient_quota"),)
    picture = replace(WELL, members=(member,), orders=orders, pauses=pauses)
    text = shown(picture, width=80)
    words = set(text.split())
    assert {"08:16:39", "01-16", "insufficient_quota", "0123456789ab", "0123456789ab/123", "0a1b2c3d", "gpt-4o-mini", "operator"} <= words
    assert "since" not in words
    assert {"since", "version"} <= set(shown(picture).split())


def test_an_open_letter_is_one_that_nothing_followed() -> None:
    """Of several letters of one request the newest; not one that was answered, or is on its way; without Redis all that there are."""
    at = [Position("main", 0, offset) for offset in range(5)]
    newest = {
        at[0]: ("timeout", "left", 10), at[1]: ("timeout", "answered", 5), at[2]: ("internal", "replayed", 5),
        at[3]: ("undecodable", None, 7), at[4]: ("internal", "dead", 3),
    }  # fmt: skip
    deaths = Deaths(newest, 9, whole=True)
    letters = deaths.counted({"left": None, "answered": "s", "replayed": "c", "dead": "d"})
    assert (letters.total, letters.open, letters.by_class, letters.oldest_ms) == (9, 3, {"timeout": 1, "undecodable": 1, "internal": 1}, 3)
    assert set(deaths.ids()) == {"left", "answered", "replayed", "dead"}
    assert deaths.counted(None).open is None


def test_endpoints_are_summed_over_the_workers_that_are_there() -> None:
    """Each judges by its own calls: how many leave it out, and why; who is silent does not count."""
    members = (
        replace(MEMBER, endpoints=(OUT,)), replace(MEMBER, endpoints=(replace(OUT, out=None, healthy=True),)),
        replace(MEMBER, endpoints=(replace(OUT, out="health"),), at_ms=NOW - SILENT_MS - 1),
    )  # fmt: skip
    picture = replace(WELL, members=members)
    assert picture.endpoints() == [Endpoint("p", "a:80", 4, 2, {"timeout": 1}, 1)]
    assert "by 1 (timeout)" in shown(picture)


def test_open_letters_are_those_a_worker_counted() -> None:
    """The newest word of one that is there and has read everything; more than it keeps is said; without one, nothing."""
    old = replace(MEMBER, at_ms=NOW - 5_000, letters=LettersSample({"auth": 9}))
    gone = replace(MEMBER, at_ms=NOW - SILENT_MS - 1, letters=LettersSample({"auth": 7}))
    newest = replace(MEMBER, letters=LettersSample({"auth": 1, "timeout": 2}, NOW - 1, untracked=1))
    letters = replace(WELL, members=(old, newest, MEMBER, gone)).counted()
    assert letters == Letters(None, 3, {"timeout": 2, "auth": 1}, NOW - 1, whole=False)
    assert "3 or more open (timeout 2, auth 1)" in shown(replace(WELL, letters=letters))
    assert replace(WELL, members=(MEMBER, gone)).counted() is None


def test_nothing_that_others_wrote_reaches_the_terminal_as_it_is() -> None:
    """Names of hosts, agents, reasons: escapes and markup are shown, not obeyed."""
    hostile = "[red]\x1b[2J\u202ename[/]"
    member = replace(MEMBER, host=hostile, instance=hostile, version=hostile, lanes={hostile: LANE, "main": LANE | {"pauses": [hostile]}})
    orders = (
        Entry("pause", Scope(agent=hostile), hostile, hostile, NOW),
        Entry("ids", Scope(), hostile, hostile, NOW, NOW + 1, name="n", left=3),
    )
    pauses = (Pause(Shut(hostile, "k", hostile), NOW + 1, 1, hostile, hostile),)
    member = replace(member, endpoints=(EndpointSample(hostile, hostile, 1, hostile),), letters=LettersSample({hostile: 2}))
    picture = replace(WELL, members=(member,), orders=orders, pauses=pauses, held=Held(hostile, None, None), away={"kafka": hostile})
    text = shown(picture)
    assert not set(text) & set("\x1b\u202e")
    assert "[red]" in text
    assert all(orjson.loads(orjson.dumps(line)) for line in lines(picture))


def test_a_worker_is_read_as_it_wrote_and_anything_else_is_none() -> None:
    """Another version's word is left out."""
    member = replace(MEMBER, endpoints=(OUT, EndpointSample("p", "b:80")), letters=LettersSample({"timeout": 2}, NOW, 1))
    said = orjson.dumps(asdict(member)).decode()
    assert parse(said) == member
    older = {name: value for name, value in asdict(MEMBER).items() if name not in ("endpoints", "letters")}
    assert parse(orjson.dumps(older).decode()) == MEMBER
    for text in ("", "[]", "{}", '{"incarnation": 1}', said.replace("7,", '"x",', 1)):
        assert parse(text) is None
