"""The options of `headrace dlq` become filters, and what makes no sense is a usage error before anything is read."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import dlq_options
from headrace.cli.dlq import app
from headrace.dlq.filters import Filters


def test_options_become_filters() -> None:
    """A command gets its filters in one value, beside its own options."""
    got: list[tuple[Filters, bool]] = []
    own = typer.Typer()

    @own.command()
    @dlq_options.filtered
    def command(filters: Filters, *, as_ndjson: dlq_options.Json = False) -> None:
        got.append((filters, as_ndjson))

    asked = ["--class", "timeout", "--class", "auth", "--since", "2027-01-15T08:00:00Z", "--id", "r", "--agent", "a", "--channel", "c"]
    assert CliRunner().invoke(own, [*asked, "--model", "m", "--provider", "p", "--text", "t", "--json"]).exit_code == 0
    expected = Filters(
        classes=frozenset({"timeout", "auth"}),
        since_ms=1_800_000_000_000,
        request_id="r",
        agent_id="a",
        channel="c",
        provider="p",
        model="m",
        text="t",
    )
    assert got == [(expected, True)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--class", "nonsense"],
        ["stats", "--since", "yesterday"],
        ["list", "--until", "2027-01-15T08:00:00"],
        ["replay", "--skip-until", "here"],
        ["replay", "--rate", "0"],
        ["replay", "--limit", "0"],
        ["replay", "--deadline", "2001-01-01T00:00:00Z"],
        ["show"],
    ],
)
def test_usage_errors(arguments: list[str]) -> None:
    """A wrong option exits 2 and names itself; no broker is asked."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_replay_says_that_twice_is_harmless() -> None:
    """The help of replay says that it is a dry run, and that doing it twice is harmless."""
    text = CliRunner().invoke(app, ["replay", "--help"]).output
    assert "dry run" in text
    assert "harmless" in text
