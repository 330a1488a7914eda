"""Asks the worker of this container for `/livez`: exit code 0 when it is well, else 1. `python -m workers.livez [ADDRESS]`.

A container's health check runs every few seconds beside the worker, so nothing is imported but sockets: 10 ms, not 180.
"""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit

PATIENCE_S = 4.0
LINE = 256


def main(arguments: list[str]) -> int:
    """The process's exit code. What the worker said goes to stdout, where `docker inspect` shows it."""
    address = arguments[0] if arguments else f"http://127.0.0.1:{os.environ.get('HEADRACE_METRICS_PORT', '')}/livez"
    try:
        head, _, body = _asked(address).partition(b"\r\n\r\n")
    except (OSError, ValueError) as error:
        sys.stdout.write(f"{address}: {error}\n")
        return 1
    sys.stdout.write(f"{body.decode(errors='replace')[:2000]}\n")
    return 0 if head[:LINE].split(b" ")[1:2] == [b"200"] else 1


def _asked(address: str) -> bytes:
    """The whole answer. Raises OSError, or ValueError for an address without a port."""
    url = urlsplit(address)
    if not url.hostname or not url.port:
        raise ValueError("no port is known; set HEADRACE_METRICS_PORT, or give the address")
    with socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"GET {url.path or '/'} HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n".encode())
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
