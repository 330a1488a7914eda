"""Results written down as they come, given out in order, and taken up after any cut."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from headrace.errors import Refused
from headrace.gather import Sheet

IDS = [f"r{n}".encode() for n in range(50)]
INDEX = {key: n for n, key in enumerate(IDS)}


def line(key: bytes, status: str = "completed") -> bytes:
    return orjson.dumps({"request_id": key.decode(), "status": status, "text": "x" * (len(key) * 7)}) + b"\n"


def opened(folder: Path, order: str, output_bytes: int | None = None) -> Sheet:
    """The sheet of these files, as a new process opens it."""
    output = (folder / "out").open("a+b")
    sheet = Sheet(INDEX, output, None) if order == "arrival" else Sheet(INDEX, (folder / "journal").open("a+b"), output)
    sheet.take_up(output_bytes)
    return sheet


def test_the_inputs_order_whatever_comes_first(tmp_path: Path) -> None:
    """What is ahead of its turn is held back, and given out when its turn comes."""
    sheet = opened(tmp_path, "input")
    for key in reversed(IDS):
        assert (tmp_path / "out").read_bytes() == b""
        sheet.add(key, "completed", line(key))
        sheet.flush()
    assert (tmp_path / "out").read_bytes() == b"".join(map(line, IDS))


def test_each_ends_once(tmp_path: Path) -> None:
    """A second end of an id is not written; counts are by the first."""
    sheet = opened(tmp_path, "arrival")
    assert sheet.add(b"r1", "failed", line(b"r1", "failed"))
    assert not sheet.add(b"r1", "completed", line(b"r1"))
    sheet.flush()
    assert (tmp_path / "out").read_bytes() == line(b"r1", "failed")
    assert (len(sheet), sheet.counts["failed"], sheet.ended(b"r1"), sheet.ended(b"r2")) == (1, 1, True, False)


@pytest.mark.parametrize("order", ["input", "arrival"])
@pytest.mark.parametrize("seed", range(6))
def test_cut_anywhere_and_taken_up(tmp_path: Path, order: str, seed: int) -> None:
    """Whatever a crash left of the files' ends, every id stands there once in the end, whole, and in order where that was asked."""
    chance = random.Random(seed)
    for _ in range(8):
        sheet = opened(tmp_path, order)
        missing = list(sheet.missing())
        chance.shuffle(missing)
        for key in missing[: chance.randrange(20)]:
            sheet.add(key, "completed", line(key))
            sheet.flush()
        out = tmp_path / "out"
        out.write_bytes(out.read_bytes()[: max(0, out.stat().st_size - chance.randrange(60))])
        if order == "input":  # what the output has, the journal has had before
            with (tmp_path / "journal").open("ab") as journal:
                journal.write(b'{"request_id": "r1", "sta')
    sheet = opened(tmp_path, order)
    for key in list(sheet.missing()):
        sheet.add(key, "completed", line(key))
    sheet.flush()
    lines = (tmp_path / "out").read_bytes().splitlines(keepends=True)
    assert sorted(lines) == sorted(map(line, IDS))
    assert order == "arrival" or lines == list(map(line, IDS))


@pytest.mark.parametrize("order", ["input", "arrival"])
def test_unanswered_lines_give_way(tmp_path: Path, order: str) -> None:
    """When the time is over each missing id has a line; taken up, these are gone, and the answers stand in their places."""
    sheet = opened(tmp_path, order)
    for key in (IDS[0], IDS[2], IDS[49]):
        sheet.add(key, "completed", line(key))
    at = sheet.written()
    sheet.close_with("too late")
    found = [orjson.loads(text) for text in (tmp_path / "out").read_bytes().splitlines()]
    assert sorted(one["request_id"] for one in found) == sorted(key.decode() for key in IDS)
    assert [one["status"] for one in found].count("unanswered") == 47
    sheet = opened(tmp_path, order, at)
    assert len(sheet) == 3
    for key in list(sheet.missing()):
        sheet.add(key, "completed", line(key))
    sheet.flush()
    assert sorted((tmp_path / "out").read_bytes().splitlines(keepends=True)) == sorted(map(line, IDS))


@pytest.mark.parametrize(
    "content", [b"{}\n", b"nonsense\n", b'{"request_id":"other","status":"completed"}\n', b'{"request_id":"r1","status":"x"}\n']
)
def test_what_is_not_its_own_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file with other lines, or with a line twice, is not written to."""
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(Refused, match="line 1"):
        opened(tmp_path, "arrival")
    (tmp_path / "out").write_bytes(line(b"r1") * 2)
    with pytest.raises(Refused, match="line 2"):
        opened(tmp_path, "arrival")
    (tmp_path / "out").write_bytes(line(b"r1"))
    with pytest.raises(Refused, match="output"):
        opened(tmp_path, "input")
