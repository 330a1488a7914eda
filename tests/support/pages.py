"""The pages of the documentation as blocks of code, each with what the comments before it say of how it is tried."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHELL = frozenset({"sh", "bash", "shell"})
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)[^`]*$")
_KNOWN = ("not run:", "needs:", "exits:", "until:", "prints", "run", "given:")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `marks` are the comments right before it: `not run: why`, `needs: program`, `exits: 3`, `until: text`, `prints`, `run`."""

    language: str
    text: str
    line: int
    marks: tuple[str, ...] = ()

    def mark(self, name: str) -> str | None:
        """What follows `name:` in a mark, or an empty text for a bare mark; None where there is none."""
        for mark in self.marks:
            if mark == name:
                return ""
            if mark.startswith(f"{name}:"):
                return mark.removeprefix(f"{name}:").strip()
        return None

    @property
    def file(self) -> str | None:
        """The file a block is, where its first line is a comment with nothing but that name."""
        found = re.match(r"#\s*([\w./-]+\.\w+)\s*\n", self.text)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Page:
    """A page: where it is, its blocks in order, and what it takes as given (`<!-- given: … -->`)."""

    path: Path
    blocks: tuple[Block, ...]
    given: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def run(self) -> tuple[Block, ...]:
        """What is run, in order: shell, Python that says so, and the files and output that go with it."""
        return tuple(block for block in self.blocks if block.mark("not run") is None)


@cache
def pages() -> tuple[Page, ...]:
    """README and every page of docs/."""
    return tuple(read(path) for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))))


def read(path: Path) -> Page:
    """The page at `path`. Raises AssertionError for a fence that does not end."""
    blocks: list[Block] = []
    marks: list[str] = []
    given = ""
    lines = iter(enumerate(path.read_text("utf-8").splitlines(), start=1))
    for number, line in lines:
        if opened := _FENCE.match(line):
            text = _inside(lines, opened, f"{path.name}:{number}")
            blocks.append(Block(opened[3], text, number, tuple(marks)))
            marks = []
        elif comments := _COMMENT.findall(line):
            marks += [comment for comment in comments if comment.startswith(_KNOWN)]
            given = next((mark.removeprefix("given:").strip() for mark in marks if mark.startswith("given:")), given)
        elif line.strip():
            marks = []
    return Page(path, tuple(blocks), given)


def _inside(lines: object, opened: re.Match[str], place: str) -> str:
    indent, fence = opened[1], opened[2]
    found: list[str] = []
    for _, line in lines:  # type: ignore[attr-defined]  # the iterator of `read`, which goes on behind the fence
        if line.strip() == fence:
            return "".join(f"{one}\n" for one in found)
        found.append(line.removeprefix(indent))
    raise AssertionError(f"{place}: the fence does not end")
