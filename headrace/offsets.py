"""Which offsets of one partition are resolved, and the map of them that travels as commit metadata. Pure.

Sets of offsets are integers here: bit i stands for the offset i above a base. Copies cost nothing, and a full
window of 24,000 is one operation of a few microseconds. Reading and committing is left to `source` and `settle`.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

WINDOW = 24_000  # the widest map, in offsets: 3,000 bytes of bitmap are 4,000 characters of base64, the rest at most 47
METADATA_CHARS = 4_095  # what a broker with the default `offset.metadata.max.bytes` of 4,096 takes

_VERSION, _RUNS, _BITMAP = "1", "r", "b"
_FORM = re.compile(r"1\.([A-Za-z0-9_-]{1,12})\.([0-9a-f]{1,16})\.([0-9a-f]{1,4})\.([rb])([A-Za-z0-9_-]*)\.([0-9a-f]{8})")


class Sequence(NamedTuple):
    """Names one settle: the producer's random incarnation (1–12 characters of `A-Z a-z 0-9 _ -`) and its count, below 2⁶⁴."""

    incarnation: str
    n: int


class Commit(NamedTuple):
    """What to commit for a partition: the offset, and the map above it."""

    frontier: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Map:
    """What is resolved at and above `frontier`, up to but without `end`: bit i of `unresolved` is offset `frontier + i`."""

    frontier: int
    end: int
    unresolved: int
    sequence: Sequence

    def resolved(self, offset: int) -> bool:
        """Whether `offset` was settled, or was no record at all. From `end` on nothing is."""
        if offset < self.frontier:
            return True
        return offset < self.end and not self.unresolved >> (offset - self.frontier) & 1

    def offsets(self) -> list[int]:
        """The unresolved offsets below `end`, ascending."""
        return [self.frontier + bit for bit in _bits(self.unresolved)]


class Tracker:
    """The offsets of one partition under one assignment. Not thread-safe: the caller locks.

    For each record read, in order: `wanted`, then `room`, then `track`. Gaps between tracked offsets
    (transaction markers, aborted or compacted records) count as resolved. What the restored map calls unresolved
    keeps the frontier until it is read and resolved, or until reading passes it by: then it is lost.
    """

    def __init__(self, frontier: int, restored: Map | None = None, *, window: int = WINDOW) -> None:
        if not 0 < window <= WINDOW:
            raise ValueError(f"a window of {window} offsets does not fit in commit metadata; at most {WINDOW} do")
        if restored is not None and restored.frontier != frontier:
            raise ValueError(f"the map is of offset {restored.frontier}, not of {frontier}")
        self._window = window
        self._base = frontier
        self._open = restored.unresolved if restored else 0  # normalised: bit 0 is set, or nothing is
        self._unread = self._open
        self._top = restored.end if restored else frontier  # one past the highest offset ever tracked
        self._end = self._top  # the same, or where the partition was seen to end
        self._lost = 0
        self._settle_down()

    @property
    def frontier(self) -> int:
        """The lowest offset not yet resolved; where nothing is open, one past everything seen."""
        return self._base

    @property
    def in_flight(self) -> int:
        """How many offsets are tracked and unresolved; what a restored map announced and was not read yet does not count."""
        return (self._open ^ self._unread).bit_count()

    @property
    def unread(self) -> int:
        """How many offsets a restored map announced as unresolved and that were not read yet."""
        return self._unread.bit_count()

    @property
    def span(self) -> int:
        """The distance from the frontier to one past the highest offset ever tracked: what the window bounds."""
        return max(0, self._top - self._base)

    @property
    def lost(self) -> int:
        """How many offsets the restored map called unresolved, and reading passed by: gone with retention or compaction."""
        return self._lost

    def wanted(self, offset: int) -> bool:
        """Whether the record just read at `offset` is unresolved. Also notes that reading has come this far."""
        self._passed(offset)
        return offset >= self._base and (offset >= self._top or bool(self._open >> (offset - self._base) & 1))

    def room(self, offset: int) -> bool:
        """Whether `offset` may be tracked now: a map of everything up to it still fits."""
        return not self._open or offset - self._base < self._window

    def track(self, offsets: Iterable[int]) -> None:
        """Offsets given to the lane, ascending. Raises ValueError for one that is resolved already, or has no room."""
        for offset in offsets:
            self._passed(offset)
            if not self._open:
                self._base = max(self._base, offset)
            place = offset - self._base
            if not 0 <= place < self._window or (offset < self._top and not self._open >> place & 1):
                raise ValueError(f"offset {offset} is resolved, or outside the {self._window} offsets from {self._base}")
            self._open |= 1 << place
            if self._unread:
                self._unread &= ~(1 << place)
            if offset >= self._top:
                self._top = offset + 1
                self._end = max(self._end, self._top)

    def resolve(self, offsets: Collection[int]) -> None:
        """Offsets whose settle is known to be committed. One that is not open changes nothing."""
        done = self._mask(offsets)
        self._open &= ~done
        self._unread &= ~done
        self._settle_down()

    def at_end(self, position: int) -> None:
        """The partition was seen to end at `position`, and every record before it was tracked or not wanted."""
        self._passed(position)
        self._end = max(self._end, position)
        self._settle_down()

    def committable(self, settling: Collection[int], sequence: Sequence) -> Commit:
        """What to commit if `settling` were resolved too. Changes nothing: the transaction may abort."""
        rest = self._open & ~self._mask(settling)
        if not rest:
            return Commit(self._end, encode_map(Map(self._end, self._end, 0, sequence)))
        skip = _lowest(rest)
        frontier = self._base + skip
        return Commit(frontier, encode_map(Map(frontier, self._top, rest >> skip, sequence)))

    def _passed(self, offset: int) -> None:
        if not self._unread or offset <= self._base:
            return
        if gone := self._unread & ((1 << min(offset, self._top) - self._base) - 1):
            self._lost += gone.bit_count()
            self._open &= ~gone
            self._unread &= ~gone
            self._settle_down()

    def _mask(self, offsets: Collection[int]) -> int:
        base, top = self._base, self._top
        buffer = bytearray((max(top - base, 0) >> 3) + 1)  # a shift per offset would copy the whole window each time
        for offset in offsets:
            if base <= offset < top:
                place = offset - base
                buffer[place >> 3] |= 1 << (place & 7)
        return int.from_bytes(buffer, "little")

    def _settle_down(self) -> None:
        skip = _lowest(self._open) if self._open else self._end - self._base
        self._base += skip
        self._open >>= skip
        self._unread >>= skip


def encode_map(found: Map) -> str:
    """The map as commit metadata: ASCII, at most 4,095 characters. Raises ValueError for a map wider than 24,000.

    `version.incarnation.n.width.payload.checksum`, numbers in hexadecimal. The payload is base64url: distances
    between the edges of runs (`r`, LEB128), or, where those might be longer, one bit an offset (`b`).
    """
    width = found.end - found.frontier
    incarnation, n = found.sequence
    named = re.fullmatch(r"[\w-]{1,12}", incarnation, re.ASCII) and 0 <= n < 1 << 64
    if not 0 <= width <= WINDOW or found.unresolved >> width or not named:
        raise ValueError(f"no map: {width} offsets from {found.frontier}, sequence {found.sequence}")
    size = width + 7 >> 3
    edges = (found.unresolved ^ found.unresolved << 1) & ((1 << width) - 1)
    if edges.bit_count() * 2 < size:  # a distance takes two bytes, but for one that can be the only long one
        kind, payload = _RUNS, _runs(edges)
    else:
        kind, payload = _BITMAP, found.unresolved.to_bytes(size, "little")
    text = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
    body = f"{_VERSION}.{incarnation}.{n:x}.{width:x}.{kind}{text}"
    return f"{body}.{_checksum(found.frontier, body)}"


def decode_map(frontier: int, metadata: str | None) -> Map | None:
    """The map in the metadata committed with `frontier`; None for anything that is not exactly one. Never raises."""
    if not metadata or len(metadata) > METADATA_CHARS:
        return None
    form = _FORM.fullmatch(metadata)
    if form is None or form[6] != _checksum(frontier, metadata[: form.start(6) - 1]):
        return None
    width = int(form[3], 16)
    if width > WINDOW:
        return None
    try:
        payload = base64.b64decode(form[5] + "=" * (-len(form[5]) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    unresolved = _unrun(payload, width) if form[4] == _RUNS else int.from_bytes(payload, "little")
    if unresolved is None or unresolved >> width:
        return None
    return Map(frontier, frontier + width, unresolved, Sequence(form[1], int(form[2], 16)))


def _checksum(frontier: int, body: str) -> str:
    return f"{zlib.crc32(f'{frontier}.{body}'.encode()):08x}"


def _runs(edges: int) -> bytes:
    payload = bytearray()
    before = 0
    for edge in _bits(edges):
        distance, before = edge - before, edge
        while distance > 0x7F:
            payload.append(distance & 0x7F | 0x80)
            distance >>= 7
        payload.append(distance)
    return bytes(payload)


def _unrun(payload: bytes, width: int) -> int | None:
    """The bits whose edges `payload` names; None where an edge is beyond `width`, or the last byte is not one."""
    bits = edge = distance = shift = 0
    for byte in payload:
        distance |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80 and shift < 21:
            continue
        edge += distance
        if edge >= width or byte & 0x80:
            return None
        bits ^= (1 << width) - (1 << edge)  # flips everything from the edge on
        distance = shift = 0
    return bits if shift == 0 else None


def _bits(bits: int) -> Iterator[int]:
    digits = f"{bits:b}"[::-1]
    place = digits.find("1")
    while place >= 0:
        yield place
        place = digits.find("1", place + 1)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
