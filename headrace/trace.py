"""W3C trace context, as far as logs need it: the trace id in a `traceparent`, or nothing where it is none."""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def trace_id(traceparent: str | None) -> str | None:
    """32 hex digits. Producers write the header, so whatever is not exactly of that form is none (W3C Trace Context, 3.2)."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    return found[1] if found else None
