"""JSON bytes of what was read as JSON: as fast as may be, and with numbers beyond 64 bits, which the fast way refuses."""

from __future__ import annotations

import json
from typing import Any

import orjson


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Raises TypeError for what no JSON has: a lone surrogate, a number that is none, an object of another kind."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError as error:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)
            return text.encode()
        except (TypeError, ValueError, RecursionError):
            raise error from None
