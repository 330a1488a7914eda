"""Formats as they were written once, kept in files. What writes them must write the same; what reads them must go on reading them.

A format that changes gets a new version and a file of its own; the old file stays, and is read for as long as such records may exist.
`HEADRACE_TEST_WRITE_GOLDEN=1` writes a file that is missing, never one that is there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent.parent / "golden"
_LOOKS = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE


def same_as_golden(name: str, written: Any) -> None:
    """Fails if what is written now is not what stands in `tests/golden/{name}.json`."""
    path = FOLDER / f"{name}.json"
    if not path.exists() and os.environ.get("HEADRACE_TEST_WRITE_GOLDEN") == "1":
        path.write_bytes(orjson.dumps(written, option=_LOOKS))
    expected, now = orjson.loads(path.read_bytes()), orjson.loads(orjson.dumps(written))
    assert now == expected, f"{name}: the format has changed; give it a new version, and go on reading this one"


def golden(pattern: str) -> list[tuple[str, Any]]:
    """Every file that matches, with its content: all the versions there ever were."""
    return [(path.stem, orjson.loads(path.read_bytes())) for path in sorted(FOLDER.glob(f"{pattern}.json"))]
