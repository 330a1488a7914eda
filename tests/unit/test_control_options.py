"""What `pause`, `resume` and `cancel` take, and what they refuse before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from headrace.cli import control_options as options
from headrace.cli.control import _scopes, _unmixed
from headrace.config import ProviderSettings, Settings
from headrace.controls import Scope

SETTINGS = Settings(providers=(ProviderSettings(name="openai"), ProviderSettings(name="local")))


def test_a_provider_must_be_configured_and_the_likeliest_is_named() -> None:
    """Names of models and agents are free."""
    assert options.scope_of(SETTINGS, provider="local", model="anything") == Scope(provider="local", model="anything")
    with pytest.raises(typer.BadParameter, match="did you mean openai"):
        options.scope_of(SETTINGS, provider="opanai")
    with pytest.raises(typer.BadParameter, match="there are: openai, local"):
        options.scope_of(SETTINGS, provider="zzz")
    for name in ("", "a" * 257):
        with pytest.raises(typer.BadParameter, match="256"):
            options.scope_of(SETTINGS, agent=name)


def test_one_way_of_saying_it_at_a_time() -> None:
    """A scope, ids, or all; a pause is of whom to call or of who asks."""
    assert _scopes(Scope(), ["a", "b"], everything=False) == [Scope(request_id="a"), Scope(request_id="b")]
    assert _scopes(Scope(), [], everything=True) == [Scope()]
    for scope, ids, everything in (
        (Scope(), [], False),
        (Scope(agent="a"), ["x"], False),
        (Scope(agent="a"), [], True),
        (Scope(), ["x"], True),
    ):
        with pytest.raises(typer.BadParameter, match="say what"):
            _scopes(scope, ids, everything=everything)
    _unmixed(Scope(agent="a", channel="c"))
    with pytest.raises(typer.BadParameter, match="pause each"):
        _unmixed(Scope(agent="a", provider="openai"))


def test_ids_are_read_once_each_and_bad_lines_are_named(tmp_path: Path) -> None:
    """Blank lines are none; a line that is no id stops all of it."""
    file = tmp_path / "ids.txt"
    file.write_bytes(b"b\n\n a \r\nb\n")
    assert options.ids_of(["a", "c", "a"], file) == ["a", "c", "b"]
    file.write_bytes(b"good\nnot good\n\xff\n")
    with pytest.raises(typer.BadParameter, match="line 2, 3"):
        options.ids_of(None, file)
    with pytest.raises(typer.BadParameter, match="no request id"):
        options.ids_of(["a b"], None)
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        options.ids_of(None, tmp_path / "none.txt")


def test_who_and_why_are_one_line_and_short() -> None:
    """Who is user@host if not given; a reason of several lines becomes one, a long one is refused."""
    assert "@" in options.who(None)
    assert options.who("ada") == "ada"
    assert options.why("two\nlines") == "two lines"
    for text in ("", "a" * 201):
        with pytest.raises(typer.BadParameter):
            options.why(text)
