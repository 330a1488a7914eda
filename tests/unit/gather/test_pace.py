"""How far a gathering is, in words."""

from __future__ import annotations

import io

from headrace.cli.pace import Pace
from headrace.gather import Sheet


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO) -> str:
    """A hundred requests, two answered a second, one of them failed."""
    clock = [0.0]
    ids = [f"r{n}".encode() for n in range(100)]
    sheet = Sheet({key: n for n, key in enumerate(ids)}, io.BytesIO(), None)
    pace = Pace(stream, now_s=lambda: clock[0])
    for second in range(21):
        clock[0] = float(second)
        for key in ids[2 * second : 2 * second + 2]:
            sheet.add(key, "failed" if key == b"r1" else "completed", b"x\n")
        pace(100, sheet, "away" if second == 20 else None)
    pace.end()
    return stream.getvalue()


def test_a_line_every_ten_seconds_elsewhere() -> None:
    """With the time left at the pace so far, and what the reading suffers from."""
    assert said(io.StringIO()) == (
        "100 sent, 22 of 100 answered, 1 failed, 39 s left\n100 sent, 42 of 100 answered, 1 failed, 29 s left; away\n"
    )


def test_what_waits_has_no_time_left() -> None:
    """Once no answer came for some seconds, the pace of those before says nothing of the rest."""
    stream, clock = io.StringIO(), [0.0]
    sheet = Sheet({b"a": 0, b"b": 1, b"c": 2}, io.BytesIO(), None)
    pace = Pace(stream, now_s=lambda: clock[0])
    pace(3, sheet, None)
    sheet.add(b"a", "completed", b"x\n")
    for clock[0] in (9.0, 12.0, 22.0):
        pace(3, sheet, None)
    assert stream.getvalue().splitlines() == [
        "3 sent, 1 of 3 answered, 0 failed, 24 s left",
        "3 sent, 1 of 3 answered, 0 failed, 2 wait for a retry, a pause or a slow call",
    ]


def test_one_line_written_over_on_a_terminal() -> None:
    """And left with a line end."""
    text = said(Terminal())
    assert (text.count("\n"), text.endswith("\n"), text.count("\r") > 15) == (1, True, True)
