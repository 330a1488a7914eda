"""Claims about the stub's HTTP parser: however the bytes arrive, the same requests come out."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.local.stub.head import MAX_BODY_BYTES, HttpFault
from headrace.local.stub.http import HttpRequest, RequestParser

PLAIN = b"POST /v1/a?x=1 HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
LAST = b"\r\nGET http://h/c HTTP/1.0\r\n\r\n"


def _feed(data: bytes) -> list[HttpRequest | HttpFault]:
    return RequestParser().feed(data)


@given(cuts=st.lists(st.integers(0, len(PLAIN + CHUNKED + LAST)), max_size=12))
@settings(max_examples=200, deadline=None)
def test_requests_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    """Three pipelined requests, plain, chunked and without a body, come out whole for any cutting."""
    stream = PLAIN + CHUNKED + LAST
    edges = [0, *sorted(cuts), len(stream)]
    parser = RequestParser()
    found = [request for a, b in itertools.pairwise(edges) for request in parser.feed(stream[a:b])]
    assert [(r.method, r.path, r.query, r.body, r.keep_alive) for r in found if isinstance(r, HttpRequest)] == [
        ("POST", "/v1/a", "x=1", b"hello", True),
        ("POST", "/b", "", b"abc0123456789", True),
        ("GET", "/c", "", b"", False),
    ]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nname : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\nc: d\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 300, 400),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 70_000, 431),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    """Each malformed or oversize stream gets its own status, and the parser takes nothing more."""
    parser = RequestParser()
    fault = parser.feed(data)[-1]
    assert isinstance(fault, HttpFault)
    assert fault.status == status
    assert parser.feed(PLAIN) == []


def test_a_fault_does_not_swallow_the_request_before_it() -> None:
    """What was whole before the bad bytes is still served."""
    first, second = _feed(PLAIN + b"nonsense\r\n\r\n")
    assert isinstance(first, HttpRequest)
    assert isinstance(second, HttpFault)


def test_a_continue_is_owed_once_and_only_while_the_body_is_missing() -> None:
    """`Expect: 100-continue` is answered when the head is here without its body, and not twice."""
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    parser = RequestParser()
    assert parser.feed(head) == []
    owed = [parser.awaits_continue]
    parser.continue_sent()
    owed.append(parser.awaits_continue)
    assert owed == [True, False]
    (request,) = parser.feed(b"ok")
    assert isinstance(request, HttpRequest)
    assert len(parser.feed(head + b"ok")) == 1
    assert not parser.awaits_continue


@pytest.mark.parametrize("chunked", [False, True])
def test_the_largest_body_takes_linear_time(chunked: bool) -> None:
    """16 MiB in 4 KiB pieces cost under 2 s of CPU; with quadratic copying they cost a multiple."""
    piece = b"x" * 4096
    count = MAX_BODY_BYTES // len(piece)
    framed = b"1000\r\n" + piece + b"\r\n" if chunked else piece
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % MAX_BODY_BYTES
    parser = RequestParser()
    began_s = time.process_time()
    found = parser.feed(b"POST / HTTP/1.1\r\n" + head + b"\r\n\r\n")
    for _ in range(count):
        found += parser.feed(framed)
    found += parser.feed(b"0\r\n\r\n" if chunked else b"")
    assert time.process_time() - began_s < 2
    (request,) = found
    assert isinstance(request, HttpRequest)
    assert len(request.body) == MAX_BODY_BYTES


def test_a_shower_of_tiny_chunks_takes_linear_time() -> None:
    """300,000 one-byte chunks in one buffer are taken in a few seconds of CPU."""
    began_s = time.process_time()
    parser = RequestParser()
    found = parser.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 300_000 + b"0\r\n\r\n")
    assert time.process_time() - began_s < 3
    assert isinstance(found[0], HttpRequest)
    assert len(found[0].body) == 300_000
