"""A key in a file that is replaced while the process runs: read again when it is another file, or has other bytes. No key is ever in a message."""

from __future__ import annotations

import time
from pathlib import Path
from stat import S_ISFIFO
from typing import NamedTuple

KEY_BYTES = 64 * 1024
_SETTLING_NS = 2_000_000_000  # within its file system's tick a file may change and keep its times; a young one is read each time


class Look(NamedTuple):
    """What a look found: a key, a fault in words, or neither where nothing has changed."""

    key: str | None = None
    fault: str | None = None


class KeyFile:
    """Thread-safe only in that one look at a time may run anywhere. A link that is switched, as Kubernetes does it, is another file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: tuple[int, ...] | None = None

    def forget(self) -> None:
        """The next look reads it, changed or not."""
        self._known = None

    def look(self, *, wall_ns: int | None = None) -> Look:
        """Reads it if it may have changed."""
        try:
            found = self.path.stat()
            if S_ISFIFO(found.st_mode):
                return Look()  # a pipe was read at the start, and gives nothing twice
            signature = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if signature == self._known:
                return Look()
            with self.path.open("rb") as file:
                content = file.read(KEY_BYTES + 1)
        except OSError as error:
            self._known = None
            return Look(fault=error.strerror or type(error).__name__)
        young = (time.time_ns() if wall_ns is None else wall_ns) - found.st_mtime_ns < _SETTLING_NS
        self._known = None if young else signature
        return _key_in(content)


def _key_in(content: bytes) -> Look:
    if len(content) > KEY_BYTES:
        return Look(fault=f"larger than {KEY_BYTES} bytes")
    try:
        key = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        return Look(fault="not UTF-8 text")
    if not key or not (key.isascii() and key.isprintable()):
        return Look(fault="empty" if not key else "not one line of ASCII text")
    return Look(key=key)
