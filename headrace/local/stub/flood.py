"""Bodies that cost the sender nothing and the reader everything: chunks without an end, and blanks packed a thousandfold."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

_MIB: Final = 1 << 20
_PIECE: Final = 1 << 16
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_EMPTY_LAST_BLOCK: Final = b"\x03\x00"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def endless(body: bytes) -> Iterator[bytes]:
    """`body` over and over, in chunks; it never ends."""
    return itertools.repeat(chunk((body or b" ") * (_PIECE // max(1, len(body)) + 1)))


@lru_cache(8)
def bomb(mib: int) -> bytes:
    """A valid gzip file of so many MiB of blanks."""
    blanks = b" " * _MIB
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(blanks) + packer.flush(zlib.Z_FULL_FLUSH)  # it refers to nothing before it, so it can be repeated
    crc = 0
    for _ in range(mib):
        crc = zlib.crc32(blanks, crc)
    return _GZIP_HEAD + block * mib + _EMPTY_LAST_BLOCK + struct.pack("<II", crc, mib * _MIB & 0xFFFFFFFF)


def interims(count: int) -> Iterable[bytes]:
    """So many interim replies; for 0 without an end."""
    one = b"HTTP/1.1 103 Early Hints\r\nlink: </hint>; rel=preload\r\n\r\n"
    return itertools.repeat(one, count) if count else itertools.repeat(one)
