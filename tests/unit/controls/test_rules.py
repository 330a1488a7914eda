"""Which order is about whom, for how long, and when what it holds back looks again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.controls import Controls, Entry, Rules, Scope
from headrace.controls.entry import FOR_EVER_MS, WHO_CHARS, WHY_CHARS, parse
from headrace.controls.pace import LOOK_FIRST_MS, LOOK_MOST_MS, PER_S, Pace
from headrace.envelope import Position, Request

NOW = 1_800_000_000_000


def a_pause(until_ms: int | None = None, **scope: Any) -> Entry:
    return Entry("pause", Scope(**scope), "ada@host", "why", NOW, until_ms)


def a_cancellation(before: dict[str, int], **scope: str) -> Entry:
    return Entry("cancel", Scope(**scope), "ada@host", "why", NOW, NOW + 1000, before)


def a_request(**fields: Any) -> Request:
    return Request(request_id="r", body={"model": "m"}, **fields)


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        ({}, {("p", "m"), ("p", "n"), ("q", "m"), ("p", None), ("q", None)}),
        ({"provider": "p"}, {("p", "m"), ("p", "n"), ("p", None)}),
        ({"model": "m"}, {("p", "m"), ("q", "m")}),
        ({"provider": "p", "model": "m"}, {("p", "m")}),
        ({"agent": "a"}, set()),
    ],
)
def test_a_pause_holds_the_targets_it_names(scope: dict[str, Any], held: set[tuple[str, str | None]]) -> None:
    """A provider with all its models, a model with whomever, both together, everything; one model is not the whole provider."""
    rules = Rules([a_pause(**scope)])
    targets = [("p", "m"), ("p", "n"), ("q", "m"), ("p", None), ("q", None)]
    assert {target for target in targets if rules.target(*target, NOW)} == held


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        ({"agent": "a"}, {("r", "a", "c"), ("s", "a", "d")}),
        ({"channel": "c"}, {("r", "a", "c")}),
        ({"agent": "a", "channel": "d"}, {("s", "a", "d")}),
        ({"request_id": "r"}, {("r", "a", "c")}),
        ({"provider": "p"}, set()),
    ],
)
def test_a_pause_holds_the_requests_it_names(scope: dict[str, Any], held: set[tuple[str, str, str]]) -> None:
    """By agent, channel, both, or id."""
    rules = Rules([a_pause(**scope)])
    assert {one for one in [("r", "a", "c"), ("s", "a", "d")] if rules.request(*one, NOW)} == held


def test_the_narrowest_pause_answers() -> None:
    """Of two that fit, the one that says more; when it has run out, the other."""
    wide, narrow = a_pause(provider="p"), a_pause(NOW + 10, provider="p", model="m")
    rules = Rules([wide, narrow])
    assert rules.target("p", "m", NOW) == narrow
    assert rules.target("p", "m", NOW + 10) == wide


def test_a_cancellation_is_of_what_began_before_it() -> None:
    """By the offset of each partition where requests begin; a partition that came later holds nothing it means."""
    rules = Rules([a_cancellation({"main/0": 10, "main/1": 0}, agent="a", model="m")])

    def meant(agent: str, model: str, origin: Position) -> bool:
        return rules.cancel(agent, "c", model, origin, NOW) is not None

    assert meant("a", "m", Position("main", 0, 9))
    assert not meant("a", "m", Position("main", 0, 10))
    assert not meant("a", "m", Position("main", 1, 0))
    assert not meant("a", "m", Position("main", 7, 0))
    assert not meant("a", "n", Position("main", 0, 9))
    assert not meant("b", "m", Position("main", 0, 9))
    assert rules.cancel("a", "c", "m", Position("main", 0, 9), NOW + 1000) is None


def test_ids_are_asked_for_only_while_some_are_cancelled() -> None:
    """An order without any left, or that has run out, costs no look-up."""
    assert not Rules([Entry("ids", Scope(), "w", "y", NOW, NOW + 10, name="n", left=0)]).any_ids(NOW)
    rules = Rules([Entry("ids", Scope(), "w", "y", NOW, NOW + 10, name="n", left=2)])
    assert rules.any_ids(NOW)
    assert not rules.any_ids(NOW + 10)


def test_news_are_told_once_with_who_and_why() -> None:
    """A pause, its end by a resume, its end by time; the same order read again is no news."""
    told: list[tuple[str, Any]] = []
    controls = Controls(tell=lambda name, fields: told.append((name, fields["about"])))
    controls.replace([a_pause(agent="a"), a_pause(NOW + 5, model="m")], NOW)
    controls.replace([a_pause(agent="a"), a_pause(NOW + 5, model="m")], NOW + 1)
    controls.expire(NOW + 1)
    controls.expire(NOW + 5)
    active = controls.active
    assert active
    controls.replace([], NOW + 6)
    assert told == [
        ("paused_by_operator", "agent a"),
        ("paused_by_operator", "model m"),
        ("resumed_by_operator", "model m"),
        ("resumed_by_operator", "agent a"),
    ]
    assert not controls.active
    assert not controls.holds("p", "m", NOW)


def test_a_paused_request_looks_again_soon_after_a_short_pause() -> None:
    """After a quarter of the time it has lasted, five seconds at least, a minute at most, and never after its end."""
    controls = Controls()
    controls.replace([a_pause(agent="a"), a_pause(NOW + 7_000, channel="c")], NOW)
    assert controls.paused_ms(a_request(agent_id="a"), NOW) == NOW + LOOK_FIRST_MS
    assert controls.paused_ms(a_request(agent_id="a"), NOW + 100_000) == NOW + 125_000
    assert controls.paused_ms(a_request(agent_id="a"), NOW + 10_000_000) == NOW + 10_000_000 + LOOK_MOST_MS
    assert controls.paused_ms(a_request(channel="c"), NOW + 3_000) == NOW + 7_000
    assert controls.paused_ms(a_request(agent_id="b"), NOW) is None


def test_a_backlog_looks_again_one_after_the_other() -> None:
    """100,000 requests of one pause take turns at the rate there is; those of another are not behind them."""
    pace = Pace()
    due = [pace.due_ms("one", NOW, None, NOW) for _ in range(100_000)]
    assert due[-1] - due[0] >= 99_000 / PER_S * 1000
    assert due == sorted(due)
    assert pace.due_ms("two", NOW, None, NOW) == NOW + LOOK_FIRST_MS
    pace.keep({"two"})
    assert pace.due_ms("one", NOW, None, NOW) == NOW + LOOK_FIRST_MS


def test_a_question_takes_no_place_and_a_deferral_does() -> None:
    """Who passes by a paused target on its way to another asks often, and must not send those away who wait for it."""
    controls = Controls()
    assert controls.spaced(NOW) == NOW
    controls.replace([a_pause(provider="p")], NOW)
    assert {controls.back_ms("p", "m", NOW) for _ in range(1_000)} == {NOW + LOOK_FIRST_MS}
    assert controls.back_ms("q", "m", NOW) is None
    assert [controls.spaced(NOW) - NOW for _ in range(3)] == [0, 1000 // PER_S, 2000 // PER_S]


NAMES = st.none() | st.text(max_size=40)


@given(
    st.builds(Scope, NAMES, NAMES, NAMES, NAMES, NAMES),
    st.sampled_from(["pause", "cancel", "ids"]),
    st.none() | st.integers(1, FOR_EVER_MS - 1),
    st.dictionaries(st.text(max_size=10), st.integers(0, 1 << 62), max_size=3),
    st.integers(0, 10**14),
)
def test_an_order_comes_back_from_its_text(scope: Scope, kind: Any, until_ms: int | None, before: dict[str, int], left: int) -> None:
    """Whatever names a request may carry."""
    entry = Entry(kind, scope, "ada@host", "a | reason", NOW, until_ms, before, "n", left)
    assert parse(entry.dump()) == entry


@pytest.mark.parametrize(
    "text", ["", "1", "x|0|0|[]", f"{NOW}|0|{NOW}|[1]", f"{NOW}|0|{NOW}|{{}}", f'{NOW}|0|{NOW}|["boom",[],"","",{{}},""]']
)
def test_what_another_version_wrote_is_left_alone(text: str) -> None:
    """It is no order, and no error."""
    assert parse(text) is None


def test_who_and_why_are_one_plain_line_of_bounded_length() -> None:
    """Whoever may write to Redis: nothing turns or clears a terminal, nothing is long."""
    entry = Entry("pause", Scope(), "a\u202eb\x1b[2J" * 40, "x\ny" * 200, NOW)
    found = parse(entry.dump())
    assert found is not None
    assert len(found.who) == WHO_CHARS
    assert len(found.why) == WHY_CHARS
    assert not set(found.who + found.why) & set("\u202e\x1b\n")
