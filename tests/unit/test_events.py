"""The table of events and the code that tells them are one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace.instrument.events import LEVELS, QUIET

TELLERS = {"tell", "_tell", "say", "_say_event", "hook"}


def told() -> Iterator[str]:
    for path in Path(headrace.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and len(node.args) == 2 and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in TELLERS and isinstance(node.args[0].value, str):
                    yield node.args[0].value


def test_every_event_that_is_told_has_a_level() -> None:
    """A new event is given its place in the table, so that nothing serious is logged as a remark."""
    assert set(told()) - set(LEVELS) == set()


def test_no_event_is_listed_that_nobody_tells() -> None:
    """Marks refused are told under names made elsewhere; all others are found in the code."""
    assert set(LEVELS) - set(told()) == {"mark_refused", "hand_over_refused"}


def test_levels_are_known() -> None:
    """The log knows these."""
    assert set(LEVELS.values()) == {"info", "warning", "error", QUIET}
