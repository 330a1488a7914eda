"""How endpoints are shown: each under a short name that the configuration alone decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

from headrace.llm.endpoint import EndpointState
from headrace.vitals import EndpointSample

_PORTS = {"https": 443, "http": 80}


def standing_of(states: Iterable[EndpointState]) -> tuple[EndpointSample, ...]:
    """In the order they are configured. Of one provider's endpoints with the same host and port, the second is `#2`, and so on."""
    seen = Counter[tuple[str, str]]()
    found = []
    for one in states:
        address = address_of(one.endpoint)
        seen[one.provider, address] += 1
        number = seen[one.provider, address]
        shown = address if number == 1 else f"{address}#{number}"
        found.append(EndpointSample(one.provider, shown, one.in_flight, one.why, one.out_s, one.healthy))
    return tuple(found)


def address_of(url: str) -> str:
    """Host and port: a path may hold the name of a tenant, or a token, and tells nothing that an operator looks for."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"[{host}]:{_port(parts.port, parts.scheme)}" if ":" in host else f"{host}:{_port(parts.port, parts.scheme)}"


def _port(port: int | None, scheme: str) -> int:
    return port if port is not None else _PORTS.get(scheme, 0)
