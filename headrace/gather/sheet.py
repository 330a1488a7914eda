"""The results as they are gathered: written down as they come, and given out in that order or in the input's.

What comes ahead of its turn waits in a file, and only its place in memory (13 bytes a request). A line that was cut off is cut away.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import BinaryIO, Literal

import orjson

from headrace.errors import Refused

Order = Literal["input", "arrival"]
STATUSES = ("", "completed", "degraded", "failed", "conflict", "gone")
_NUMBER = {status: number for number, status in enumerate(STATUSES)}
_CHUNK = 1 << 20


class Sheet:
    """`journal` takes every line; with the order of the input, `output` gets them from there in their turn. `keys`: the input's ids."""

    def __init__(self, index: dict[bytes, int], journal: BinaryIO, output: BinaryIO | None) -> None:
        self._index = index
        self._keys = list(index)
        self._journal = journal
        self._output = output
        self._ended = bytearray(len(index))
        self._at = array("q")
        self._lengths = array("I")
        if output is not None:
            self._at = array("q", bytes(8 * len(index)))
            self._lengths = array("I", bytes(self._lengths.itemsize * len(index)))
        self._bytes = 0
        self._next = 0
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many have ended."""
        return self.counts.total()

    @property
    def total(self) -> int:
        return len(self._keys)

    def ended(self, key: bytes) -> bool:
        """Whether its end is written down."""
        return self._ended[self._index[key]] != 0

    def missing(self) -> Iterable[bytes]:
        """Those without an end, in the input's order."""
        return (key for key, ended in zip(self._keys, self._ended, strict=True) if not ended)

    def add(self, key: bytes, status: str, line: bytes) -> bool:
        """Write an end down; False for one that has ended already."""
        index = self._index[key]
        if self._ended[index]:
            return False
        self._journal.write(line)
        self._note(index, status, len(line))
        return True

    def take_up(self, output_bytes: int | None) -> None:
        """Read what an earlier run has written, and cut away what it could not finish. Raises Refused for what is not its own."""
        self._journal.seek(0)
        if self._output is None:
            _cut(self._journal, output_bytes)
        else:
            _cut(self._journal, None)
        for number, line in enumerate(self._journal, 1):
            try:
                found = orjson.loads(line)
                index, status = self._index[found["request_id"].encode()], "conflict" if found["status"] == "duplicate" else found["status"]
                new = not self._ended[index] and status in STATUSES
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                new = False
            if not new:
                raise Refused(f"line {number} of what was gathered is not of this run; remove the files of the run to begin anew")
            self._note(index, status, len(line))
        if self._output is not None:
            self._next = self._take_up_output(self._output, output_bytes)

    def flush(self) -> None:
        """Give out what is due, and hand it to the system: a killed process loses none of it."""
        self._journal.flush()
        if self._output is None:
            return
        while self._next < len(self._keys) and self._ended[self._next]:
            self._output.write(os.pread(self._journal.fileno(), self._lengths[self._next], self._at[self._next]))
            self._next += 1
        self._output.flush()

    def sync(self) -> None:
        """`flush`, to the disk."""
        self.flush()
        os.fsync(self._journal.fileno())

    def written(self) -> int:
        """The output's bytes, all of them lines with an end."""
        self.flush()
        return (self._output or self._journal).seek(0, os.SEEK_END)

    def close_with(self, words: str) -> None:
        """A line `unanswered` for each that has no end, in its turn, and what was held back behind it."""
        self.flush()
        output = self._output or self._journal
        for index in range(self._next, len(self._keys)):
            if not self._ended[index]:
                output.write(own_line(self._keys[index], "unanswered", words))
            elif self._output is not None:
                output.write(os.pread(self._journal.fileno(), self._lengths[index], self._at[index]))
        output.flush()

    def _note(self, index: int, status: str, length: int) -> None:
        self._ended[index] = _NUMBER[status]
        if self._output is not None:
            self._at[index], self._lengths[index] = self._bytes, length
        self._bytes += length
        self.counts[status] += 1

    def _take_up_output(self, output: BinaryIO, output_bytes: int | None) -> int:
        """How many lines of the output stand; they must be those that were gathered."""
        _cut(output, output_bytes)
        count, last = 0, b""
        output.seek(0)
        for line in output:
            count, last = count + 1, line
        own = count <= len(self._keys) and all(self._ended[:count])
        if count and not (own and last == os.pread(self._journal.fileno(), self._lengths[count - 1], self._at[count - 1])):
            raise Refused("the output is not what this run has written; remove the files of the run to begin anew")
        return count


def own_line(key: bytes, status: str, words: str) -> bytes:
    """A line for a request of which llm_results has none: `gone` or `unanswered`."""
    error = {"class": status, "code": None, "message": words}
    return orjson.dumps({"request_id": key.decode(), "status": status, "response": None, "error": error}, option=orjson.OPT_APPEND_NEWLINE)


def _cut(file: BinaryIO, at: int | None) -> None:
    """Cut the file at a place, then behind its last line end; it stands at its beginning afterwards."""
    end = file.seek(0, os.SEEK_END)
    if at is not None and at < end:
        end = at
    whole = end
    while whole:
        begin = max(0, whole - _CHUNK)
        file.seek(begin)
        found = file.read(whole - begin).rfind(b"\n")
        if found >= 0:
            whole = begin + found + 1
            break
        whole = begin
    file.truncate(whole)
    file.seek(0)
