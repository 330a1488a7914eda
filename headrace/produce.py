"""Requests from JSONL to the main topic: every line is judged as the lane will judge it, then all are sent. Kafka itself is `writer`'s."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import orjson

from headrace.decode import BATCH_FIELDS, FIELDS, decode
from headrace.document import nearest
from headrace.envelope import Record
from headrace.errors import ConfigError, Refused
from headrace.outcome import Output
from headrace.redact import clip
from headrace.writer import Writer

RECORD_OVERHEAD = 128  # batch and record framing, beside key and value; generous
_BOM = b"\xef\xbb\xbf"
_BAD_KEPT = 10_000
FINGERPRINT_BYTES = 12

OnBad = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input: its number from 1, its bytes (without the line end), and its length before it was cut at the limit."""

    number: int
    value: bytes
    length: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """Why a line is not sent."""

    number: int
    reason: str
    request_id: str | None = None


class Ids:
    """The request ids of an input in its order, each once, with the fingerprint of its content. Some 150 bytes each."""

    def __init__(self) -> None:
        self.index: dict[bytes, int] = {}
        self._fingerprints = bytearray()
        self._lines = array("L")

    def __len__(self) -> int:
        return len(self.index)

    def add(self, request_id: bytes, fingerprint: str, line: int) -> int | None:
        """The number of the line that has this id already; None: it is new, and added."""
        at = self.index.setdefault(request_id, len(self._lines))
        if at < len(self._lines):
            return self._lines[at]
        self._lines.append(line)
        self._fingerprints += bytes.fromhex(fingerprint)
        return None

    def fingerprint(self, request_id: bytes) -> bytes:
        """Of an id that is here, hexadecimal, as results carry it."""
        at = self.index[request_id] * FINGERPRINT_BYTES
        return self._fingerprints[at : at + FINGERPRINT_BYTES].hex().encode()


@dataclass(slots=True)
class Survey:
    """What the first pass found. `bad` holds the first 10,000 of `bad_count`; `skip` the numbers of all lines not to be sent.

    `ids` are those of the good lines.
    """

    lines: int = 0
    good: int = 0
    bad_count: int = 0
    duplicates: int = 0
    bad: list[BadLine] = field(default_factory=list)
    repeated: list[BadLine] = field(default_factory=list)
    skip: set[int] = field(default_factory=set)
    ids: Ids = field(default_factory=Ids)

    def note_bad(self, line: BadLine) -> None:
        self.bad_count += 1
        self.skip.add(line.number)
        if len(self.bad) < _BAD_KEPT:
            self.bad.append(line)

    def note_repeated(self, line: BadLine) -> None:
        self.duplicates += 1
        if len(self.repeated) < _BAD_KEPT:
            self.repeated.append(line)


def open_input(path: Path) -> BinaryIO:
    """The file, opened. Raises ConfigError with what is wrong with it."""
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}); check path and mode"]) from None


def lines(source: BinaryIO, limit: int) -> Iterator[Line]:
    """The lines that are not blank. No more than `limit` + 1 bytes of a line are ever held."""
    number = 0
    while chunk := source.readline(limit + 3):
        number += 1
        length, rest = len(chunk), chunk
        while not rest.endswith(b"\n") and (rest := source.readline(1 << 16)):
            length += len(rest)
        value = chunk.removeprefix(_BOM) if number == 1 else chunk
        value = value.rstrip(b"\r\n")
        beyond = length - len(chunk)
        if value.strip():
            yield Line(number, value, len(value) + beyond - (1 if beyond and rest.endswith(b"\n") else 0))


def survey(source: BinaryIO, topic: str, max_bytes: int, *, on_line: Callable[[int], None] = lambda _: None) -> Survey:
    """Judges every line. Ids are remembered, so memory grows with their number (see Ids)."""
    found = Survey()
    for line in lines(source, max_bytes):
        found.lines += 1
        on_line(line.length + 1)
        request_id, fingerprint, reason = judge(line, topic, max_bytes)
        if reason is not None or request_id is None or fingerprint is None:
            found.note_bad(BadLine(line.number, reason or "no request_id", request_id))
            continue
        first = found.ids.add(request_id.encode(), fingerprint, line.number)
        if first is not None and found.ids.fingerprint(request_id.encode()) != fingerprint.encode():
            found.note_bad(
                BadLine(line.number, f"request_id: stands on line {first} too, with other content; give each its own", request_id)
            )
            continue
        if first is not None:
            found.note_repeated(
                BadLine(line.number, f"the same request as on line {first}; it is sent, and will be settled once", request_id)
            )
        found.good += 1
    return found


def judge(line: Line, topic: str, max_bytes: int) -> tuple[str | None, str | None, str | None]:
    """(request id, fingerprint, why it cannot be sent): the lane's own rules, and beyond them size and unknown fields."""
    if line.length + RECORD_OVERHEAD > max_bytes:
        return (
            None,
            None,
            f"is {line.length} bytes, and {topic} takes records of {max_bytes - RECORD_OVERHEAD} at most; shorten it, or raise max.message.bytes",
        )
    job = decode(Record(topic, 0, 0, 0, None, line.value, (), 0))
    if job.fault is not None:
        hint = "; write one JSON object a line" if line.value[:1] == b"[" else ""
        return job.request_id, job.fingerprint, job.fault.message + hint
    if len(line.value) + len(job.request_id or "") + RECORD_OVERHEAD > max_bytes:
        return job.request_id, job.fingerprint, f"is too large for {topic} together with its key; shorten it"
    return job.request_id, job.fingerprint, _unknown(line.value)


def _unknown(value: bytes) -> str | None:
    fields = orjson.loads(value)
    known = (BATCH_FIELDS if "custom_id" in fields and "request_id" not in fields else frozenset()) | FIELDS
    unknown = [name for name in fields if name not in known]
    if not unknown:
        return None
    names = ", ".join(repr(clip(name, 60)) + nearest(name[:60], known) for name in unknown[:3])
    return f"unknown field {names}; fields of the model's request belong in body, your own in metadata"


def send(
    source: BinaryIO, found: Survey, writer: Writer, topic: str, max_bytes: int, *, on_sent: Callable[[int], None] = lambda _: None
) -> None:
    """Sends what the survey let pass, the bytes of the line as they are, keyed by request id. Safe once the writer is flushed.

    Raises Refused when the input is no longer what was surveyed.
    """
    count = 0
    for line in lines(source, max_bytes):
        count += 1
        if line.number in found.skip:
            continue
        request_id = id_of(line)
        writer.send(Output(topic, request_id.encode(), line.value), tag=line.number)
        on_sent(writer.delivered)
    if count != found.lines:
        raise Refused(f"the input changed while it was read: {found.lines} lines were checked, {count} were there to be sent")


def id_of(line: Line) -> str:
    """The request id of a line that was judged good."""
    fields = orjson.loads(line.value)
    return str(fields.get("request_id", fields.get("custom_id")))


def stamp(source: BinaryIO) -> tuple[int, int, int]:
    """What tells whether a file was changed between the passes."""
    status = os.fstat(source.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns
