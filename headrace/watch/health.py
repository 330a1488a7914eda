"""The HTTP server of the probes and the metrics: a few paths. What they answer is `probes`', and `metrics`'.

The standard library's threading server, in daemon threads: it must answer also while the event loop is blocked, and a
second loop for three paths that are asked every few seconds would be more to go wrong. What it may cost is bounded.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple

import orjson

from headrace.errors import ConfigError

PATIENCE_S = 5.0  # a client that says nothing for so long is let go
ROOM_S = 0.5  # for the thread of one that was let go to end
AT_ONCE = 16


class Answer(NamedTuple):
    """200 or 503, and why."""

    well: bool
    body: Mapping[str, Any]


class Page(NamedTuple):
    """Bytes of some content type, with the status they go out with."""

    status: HTTPStatus
    content_type: str
    text: bytes


Routes = Mapping[str, Callable[[], Answer]]
Pages = Mapping[str, Callable[[str], Page]]


class Health:
    """Serves `routes`, in JSON, and `pages`, for what `Accept` asks, on `host`:`port` (0: any free one) from `open` to `close`."""

    def __init__(self, host: str, port: int, routes: Routes, pages: Pages | None = None) -> None:
        self._host = host
        self._port = port
        self._routes = routes
        self._pages: Pages = pages or {}
        self._server: _Server | None = None

    def open(self) -> str:
        """Listen; the address. Raises ConfigError where that cannot be done."""
        handler = type("Handler", (_Handler,), {"routes": self._routes, "pages": self._pages})
        try:
            self._server = _Server((self._host, self._port), handler)
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            place = f"HEADRACE_METRICS_PORT, HEADRACE_HTTP_HOST: cannot listen on {self._host}:{self._port} ({why})"
            raise ConfigError([f"{place}; set another port, or 0 for any free one, and an address of this machine"]) from error
        threading.Thread(target=self._server.serve_forever, args=(0.25,), name="health", daemon=True).start()
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._reading: dict[socket.socket, None] = {}  # the oldest first
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """As the base, without asking DNS for the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread a connection, and no more than a few at once. Who has been longest in saying what he wants makes room for the next:
        else a few that drip would keep the probes out, and the worker would be killed for it.
        """
        if not self._room.acquire(blocking=False) and not (self._let_go() and self._room.acquire(timeout=ROOM_S)):
            self.shutdown_request(request)
            return
        self._reading[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._room.release()

    def heard(self, request: socket.socket) -> None:
        """It has said what it wants, or has ended."""
        self._reading.pop(request, None)

    def _let_go(self) -> bool:
        oldest = next(iter(list(self._reading)), None)
        if oldest is None:
            return False
        self.heard(oldest)
        with contextlib.suppress(OSError):  # it has just ended by itself
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no fault of ours, and nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    routes: ClassVar[Routes] = {}
    pages: ClassVar[Pages] = {}
    timeout = PATIENCE_S
    server_version, sys_version = "headrace", ""

    def do_GET(self) -> None:
        """Answer a path, or 404."""
        if isinstance(self.server, _Server):
            self.server.heard(self.connection)
        path = self.path.partition("?")[0]
        if (page := self.pages.get(path)) is not None:
            self._send(page(",".join(self.headers.get_all("Accept", []))))
        elif (answer := self.routes.get(path)) is not None:
            well, body = answer()
            self._send(_json(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, body))
        else:
            self._send(_json(HTTPStatus.NOT_FOUND, {"paths": [*self.routes, *self.pages]}))

    do_HEAD = do_GET  # noqa: N815  the base class names it

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it
        """Probes come every few seconds: nothing is logged of them."""


def _json(status: HTTPStatus, body: Mapping[str, Any]) -> Page:
    return Page(status, "application/json", orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE))
