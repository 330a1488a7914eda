"""What a lane holds, in records and bytes, and whether it is full. Hysteresis: full at the limit, open again at half of it."""

from __future__ import annotations

import threading


class Flow:
    """Thread-safe. Every record taken is given back exactly once: settled, handed over or dropped."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._most_records = most_records
        self._most_bytes = most_bytes
        self.records = 0
        self.bytes = 0
        self.taken_records = self.taken_bytes = 0  # since the start
        self._open = threading.Event()
        self._open.set()

    def take(self, records: int, size: int) -> None:
        """Records were read and given to the lane."""
        with self._lock:
            self.records += records
            self.bytes += size
            self.taken_records += records
            self.taken_bytes += size
            if self.records >= self._most_records or self.bytes >= self._most_bytes:
                self._open.clear()

    def give_back(self, records: int, size: int) -> None:
        """Records have left the lane."""
        with self._lock:
            self.records -= records
            self.bytes -= size
            if self.records <= self._most_records // 2 and self.bytes <= self._most_bytes // 2:
                self._open.set()

    @property
    def full(self) -> bool:
        """Whether reading has to stop."""
        return not self._open.is_set()

    def wait_open(self, timeout_s: float) -> bool:
        """Wait until reading may go on; whether it may."""
        return self._open.wait(timeout_s)
