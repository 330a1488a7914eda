"""A Produce request written by hand, for what the client refuses to send: header names that are no text."""

from __future__ import annotations

import socket
import struct
import time


def produce(bootstrap: str, topic: str, partition: int, *, value: bytes, header: tuple[bytes, bytes]) -> None:
    """One record to a partition; the broker at `bootstrap` must lead it. Raises AssertionError where the broker refuses it."""
    batch = _batch(_record(value, header))
    name = topic.encode()
    body = struct.pack(">hhii", -1, 1, 10_000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    request = struct.pack(">hhih", 0, 3, 1, 3) + b"raw" + body
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            answer += connection.recv(4096)
    error = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name) + 4 + 4)[0]
    assert error == 0, f"the broker answers {error}"


def _record(value: bytes, header: tuple[bytes, bytes]) -> bytes:
    name, text = header
    body = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _varint(len(value)) + value
    body += _varint(1) + _varint(len(name)) + name + _varint(len(text)) + text
    return _varint(len(body)) + body


def _batch(record: bytes) -> bytes:
    now_ms = int(time.time() * 1000)
    covered = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    rest = struct.pack(">ibI", -1, 2, _crc32c(covered)) + covered
    return struct.pack(">qi", 0, len(rest)) + rest


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
