"""The harness that runs the pages: it must be able to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page_shell import PageShell, page_shell, shows
from tests.support.pages import Block, read


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    """Give a shell."""
    with page_shell(tmp_path, {"GIVEN": "yes"}, "test-1") as made:
        yield made


def sh(text: str, *marks: str) -> Block:
    return Block("sh", text, 1, marks)


def test_variables_and_files_last_from_block_to_block(shell: PageShell) -> None:
    """What one block sets, the next has; the variables of the page are there."""
    shell.run(sh("A=$GIVEN\necho one > file\n"))
    assert shell.run(sh('echo "$A"; cat file\n')) == "yes\none\n"


@pytest.mark.parametrize("text", ["false\necho after\n", "false | cat\n", "no-such-command\n", "exit 3\n"])
def test_a_command_that_fails_in_the_middle_fails_the_block(shell: PageShell, text: str) -> None:
    """So does a part of a pipe, a command that is not there, and an exit."""
    with pytest.raises(AssertionError, match="line 1: exit code"):
        shell.run(sh(text))


def test_an_exit_code_that_the_page_names_is_expected(shell: PageShell) -> None:
    """`exits: 3` takes 3, and nothing else; the page goes on behind it."""
    shell.run(sh("(exit 3)\n", "exits: 3"))
    assert shell.run(sh("echo on\n")) == "on\n"
    with pytest.raises(AssertionError, match="0, not exit code 3"):
        shell.run(sh("true\n", "exits: 3"))


def test_another_terminal_is_waited_for_and_its_exports_are_pasted(shell: PageShell) -> None:
    """A block with `until` goes on behind the page; one that ends without having said it fails."""
    shell.behind(sh("echo export B=two\necho Ready\nsleep 600\n"), "Ready")
    assert shell.run(sh('echo "$B"\n')) == "two\n"
    with pytest.raises(AssertionError, match="no 'Ready'"):
        shell.behind(sh("echo not yet\n"), "Ready")


def test_a_page_has_topics_of_its_own(shell: PageShell) -> None:
    """Default names stand for the page's topics, in what it runs and in what it prints."""
    said = shell.run(sh("echo llm_requests_main llm_requests_retry_later llm_results > names; cat names; wc -c < names\n"))
    assert said.splitlines()[0] == "llm_requests_main llm_requests_retry_later llm_results"
    assert int(said.splitlines()[1]) == len(said.splitlines()[0]) + 1 + 3 * len("test-1_")


def test_a_page_cannot_write_into_the_repository(shell: PageShell) -> None:
    """A block that is a file of the page never replaces one of ours."""
    with pytest.raises(AssertionError, match="part of the repository"):
        shell.write("headrace/errors.py", "")


@pytest.mark.parametrize(
    ("expected", "missing"),
    [
        ("one\nthree 3", None),
        ("one\n…\nthree …", None),
        ("three 3\none", "one"),
        ("on", "on"),
        ("… 4", "… 4"),
        ("one\none", "one"),
    ],
)
def test_what_a_page_shows_is_compared_line_by_line(expected: str, missing: str | None) -> None:
    """In order, whole lines, with `…` for what varies."""
    assert shows("one\n two  2\nthree   3\n", expected) == missing


def test_marks_belong_to_the_block_right_behind_them(tmp_path: Path) -> None:
    """A comment counts for the next fence only, and text in between parts them."""
    (tmp_path / "page.md").write_text(
        "<!-- given: topics -->\n<!-- exits: 3 -->\n\n```sh\na\n```\n\n```text\nb\n```\n<!-- not run: needs a cloud -->\nWords.\n```sh\nc\n```\n"
    )
    page = read(tmp_path / "page.md")
    assert page.given == "topics"
    assert [(block.mark("exits"), block.mark("not run")) for block in page.blocks] == [("3", None), (None, None), (None, None)]


def test_a_fence_that_does_not_end_is_told(tmp_path: Path) -> None:
    """Else the rest of a page would be a block that nobody runs."""
    (tmp_path / "page.md").write_text("```sh\na\n")
    with pytest.raises(AssertionError, match="does not end"):
        read(tmp_path / "page.md")
