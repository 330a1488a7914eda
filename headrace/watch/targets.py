"""Whom a worker calls, as `/status` shows it: the endpoints, and what is shut, why and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from headrace.pause import Pause
from headrace.vitals import EndpointSample


def targets(
    endpoints: Iterable[EndpointSample], pauses: Iterable[Pause], now_ms: int, model: Callable[[str], str]
) -> dict[str, list[dict[str, Any]]]:
    """`model` gives the name a model is shown under: callers choose some of them."""
    return {
        "endpoints": [
            {
                "provider": one.provider, "endpoint": one.address, "in_flight": one.in_flight, "out": one.out,
                "out_s": None if one.out_s is None else round(one.out_s, 1), "healthy": one.healthy,
            }
            for one in endpoints
        ],
        "pauses": [
            {
                "provider": one.scope.provider, "key_id": one.scope.key_id, "model": None if one.scope.model is None else model(one.scope.model),
                "error_class": one.error_class or None, "code": one.code or None,
                "until": datetime.fromtimestamp(one.until_ms / 1000, UTC).isoformat(timespec="seconds"),
                "left_s": max(0, one.until_ms - now_ms) // 1000,
            }
            for one in pauses
        ],
    }  # fmt: skip
