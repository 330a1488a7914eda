"""Which dead letters are open: dead, and not answered since. Pure, compact state over two topics read by someone else (`follower`).

A letter is known by its request id, or, where it has none that counts, by its origin: both as digests of 60 bits.
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from headrace.errors import ErrorClass
from headrace.redact import OTHER

MOST = 1_000_000
ANSWERED = 50_000
_CLASSES = (*(error_class.value for error_class in ErrorClass), OTHER)
_NUMBER = {name: number for number, name in enumerate(_CLASSES)}
_CLASS_BITS, _PARTITION_BITS, _BITS = 5, 12, 60


@dataclass(frozen=True, slots=True)
class Standing:
    """`open` by error class; `oldest_ms` is when the oldest open one died (epoch ms); `progress` how much was read of what there was, 0 to 1."""

    open: Mapping[str, int] = field(default_factory=dict)
    oldest_ms: int | None = None
    untracked: int = 0
    progress: float = 0.0
    caught_up: bool = False


class _Line:
    """The letters of one partition in the order of their offsets, left from the head."""

    def __init__(self) -> None:
        self.offsets, self.digests, self.died_s = array("Q"), array("Q"), array("L")
        self.head = 0

    def add(self, offset: int, digest: int, died_s: int) -> None:
        self.offsets.append(offset)
        self.digests.append(digest)
        self.died_s.append(died_s)

    def step(self) -> None:
        """Leave the head; what was left is given back now and then."""
        self.head += 1
        if self.head > 1024 and self.head * 2 > len(self.offsets):
            for column in (self.offsets, self.digests, self.died_s):
                del column[: self.head]
            self.head = 0

    def __len__(self) -> int:
        return len(self.offsets) - self.head


class OpenLetters:
    """Not thread-safe. About 155 bytes a letter, `most` of them at most; those beyond are only counted.

    Results may come a little before the letters they answer: the last `ANSWERED` are remembered.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._salt = secrets.token_bytes(16)
        self._open: dict[int, int] = {}  # digest: its newest letter, as offset, partition and class in one number
        self._counts = [0] * len(_CLASSES)
        self._lines: dict[int, _Line] = {}
        self._answered: OrderedDict[int, None] = OrderedDict()  # a plain one looks for its first through all that were deleted
        self.untracked = 0

    def __len__(self) -> int:
        return len(self._open)

    def died(self, partition: int, offset: int, *, origin: str, request_id: str | None, error_class: str, died_ms: int) -> None:
        """A letter was read. A conflict's id is another request's, so it goes by its origin."""
        named = request_id is not None and error_class != ErrorClass.ID_CONFLICT.value
        by_origin = self._digest(origin.encode("utf-8", "replace"))
        digest = self._digest(request_id.encode()) if named and request_id is not None else by_origin
        if digest in self._answered or by_origin in self._answered:
            return
        line = self._lines.setdefault(partition, _Line())
        known = self._open.get(digest)
        if known is None and len(self._open) >= self._most:
            self.untracked += 1
            return
        self._close(digest)
        number = _NUMBER.get(error_class, _NUMBER[OTHER])
        self._open[digest] = ((offset << _PARTITION_BITS) | (partition & 0xFFF)) << _CLASS_BITS | number
        self._counts[number] += 1
        line.add(offset, digest, max(0, died_ms) // 1000)
        if len(line) > 3 * self._most:
            self._tidy(partition, line)

    def answered(self, *, request_id: bytes, origin: bytes | None) -> None:
        """A `completed` result was read: whatever was open under its id or its origin is not any more."""
        for digest in {self._digest(request_id), self._digest(origin or request_id)}:
            self._close(digest)
            self._answered[digest] = None
        while len(self._answered) > 2 * ANSWERED:
            self._answered.popitem(last=False)

    def deleted_before(self, partition: int, offset: int) -> None:
        """Retention has taken what stood before this offset: nobody can replay it any more."""
        line = self._lines.get(partition)
        while line is not None and len(line) and line.offsets[line.head] < offset:
            digest = line.digests[line.head]
            if self._newest(digest) == (partition & 0xFFF, line.offsets[line.head]):
                self._close(digest)
            line.step()

    def standing(self, progress: float, *, caught_up: bool) -> Standing:
        """As it is now."""
        counts = {name: count for name, count in zip(_CLASSES, self._counts, strict=True) if count}
        return Standing(counts, self._oldest_ms(), self.untracked, progress, caught_up)

    def _tidy(self, partition: int, line: _Line) -> None:
        """Of a request that died many times the first letter and the newest do."""
        seen: set[int] = set()
        kept = _Line()
        for at in range(line.head, len(line.offsets)):
            offset, digest = line.offsets[at], line.digests[at]
            if digest in self._open and (digest not in seen or self._newest(digest) == (partition & 0xFFF, offset)):
                seen.add(digest)
                kept.add(offset, digest, line.died_s[at])
        self._lines[partition] = kept

    def _oldest_ms(self) -> int | None:
        """Of each partition the first letter that is still open; those before it are left for good."""
        oldest = []
        for line in self._lines.values():
            while len(line) and line.digests[line.head] not in self._open:
                line.step()
            if len(line):
                oldest.append(line.died_s[line.head] * 1000)
        return min(oldest, default=None)

    def _newest(self, digest: int) -> tuple[int, int] | None:
        packed = self._open.get(digest)
        if packed is None:
            return None
        place = packed >> _CLASS_BITS
        return place & 0xFFF, place >> _PARTITION_BITS

    def _close(self, digest: int) -> None:
        packed = self._open.pop(digest, None)
        if packed is not None:
            self._counts[packed & ((1 << _CLASS_BITS) - 1)] -= 1

    def _digest(self, name: bytes) -> int:
        return int.from_bytes(blake2b(name, digest_size=8, key=self._salt).digest(), "big") >> (64 - _BITS)
