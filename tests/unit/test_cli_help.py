"""The command line's help."""

from __future__ import annotations

from typer.testing import CliRunner

from headrace.cli import build, unwrapped


def test_paragraphs_are_broken_by_the_terminal_alone() -> None:
    """A docstring's own line ends are gone, its paragraphs stay; so in a command, and in a command of a group."""
    assert unwrapped("One\n    two.\n\n    Three\n    four.\n") == "One two.\n\nThree four."
    wide = {"COLUMNS": "400", "TERMINAL_WIDTH": "400"}
    for arguments, text in (
        (("produce", "--help"), "3 no lines; 1 the broker cannot be reached; 2 the file"),
        (("topics", "diff", "--help"), "something differs that is never done for you"),
        (("dlq", "replay", "--help"), "Of one request only the newest dead letter is sent"),
    ):
        shown = CliRunner().invoke(build(arguments[0]), arguments, env=wide)
        assert text in shown.output
