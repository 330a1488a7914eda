"""Seeded chance as a pure function: the same seed and request id always draw the same number."""

from __future__ import annotations

import hashlib


def draw(seed: int, request_id: str, salt: str = "") -> float:
    """A number in [0, 1), uniform over request ids and independent between salts."""
    digest = hashlib.blake2b(f"{seed}\0{salt}\0{request_id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
