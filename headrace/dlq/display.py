"""Dead letters for people and programs to read: nothing in them can reach the terminal as anything but text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from headrace.dlq.console import iso
from headrace.dlq.letter import Letter
from headrace.envelope import Attempt, Header
from headrace.trail import row_of

SHOWN_BYTES = 64 << 10
NARROW = ("DIED (UTC)", "POSITION", "CLASS", "CALLS", "REQUEST ID")  # fits 80 columns with the default topic names
WIDE = (*NARROW[:-1], "CODE", "PROVIDER", "MODEL", NARROW[-1])
_CELL = 256

# Control characters, lone surrogates, and what turns the direction of text or hides it.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_UNSAFE_IN_TEXT = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))


def safe(text: str, limit: int = 256) -> str:
    """The text in one line, with everything that is not plainly visible as an escape, and cut at `limit` characters."""
    shown = _UNSAFE.sub(_escape, text[:limit])
    return shown + "…" if len(text) > limit else shown


def safe_bytes(data: bytes | None, limit: int = SHOWN_BYTES) -> str:
    """The bytes as text of several lines; what is no UTF-8 as an escape, and what was cut is said."""
    if data is None:
        return "(null)"
    text = _UNSAFE_IN_TEXT.sub(_escape, data[:limit].decode("utf-8", "backslashreplace"))
    left = len(data) - limit
    return text if left <= 0 else f"{text}\n… {left:,} more bytes (--full shows all)"


def cells(letter: Letter, *, wide: bool = False) -> tuple[str, ...]:
    """A row of `list`, under NARROW or WIDE."""
    more = (letter.code or "-", letter.provider or "-", letter.model or "-") if wide else ()
    calls = str(letter.trail.retry_count)
    return (moment(letter.dead_at_ms), str(letter.position), letter.error_class, calls, *more, letter.request_id or "-")


def moment(epoch_ms: int) -> str:
    """A time for a column, in UTC and to the second."""
    return iso(epoch_ms)[:19].replace("T", " ")


def as_json(letter: Letter, *, reveal: bool = False) -> dict[str, object]:
    """The letter as a JSON object; key, value and the producer's headers only with `reveal`, as base64."""
    record = letter.record
    facts: dict[str, object] = {
        "position": str(letter.position),
        "request_id": letter.request_id,
        "error_class": letter.error_class,
        "error_code": letter.code,
        "error_message": letter.message,
        "dead_at": _when(letter.dead_at_ms),
        "first_failed_at": _when(letter.first_failed_at_ms),
        "retry_count": letter.trail.retry_count,
        "attempts": [row_of(attempt) for attempt in letter.trail.attempts],
        "provider": letter.provider,
        "model": letter.model,
        "agent_id": letter.agent_id,
        "channel": letter.channel,
        "origin": str(letter.origin),
        "hop": letter.trail.hop,
        "deadline_at": _when(letter.trail.deadline_at_ms),
        "replay_id": letter.trail.replay_id,
        "replay_count": letter.replay_count,
        "cut": letter.cut,
        "value_bytes": None if record.value is None else len(record.value),
    }
    if reveal:
        facts["key_base64"] = _base64(record.key)
        facts["value_base64"] = _base64(record.value)
        facts["headers_base64"] = [[name.encode("utf-8", "replace").decode(), _base64(value)] for name, value in record.headers]
    return facts


def _called(attempt: Attempt) -> str:
    model = f", {safe(attempt.model)}" if attempt.model else ""
    return f"{safe(attempt.provider)}{model}{'; on to the next of its chain' if attempt.left else ''}"


def page(letter: Letter, *, reveal: bool = False, full: bool = False) -> Iterator[str]:
    """The lines of `show`. Without `reveal`, of key, value and the producer's headers only the sizes, and a digest of the value."""
    for name, fact in as_json(letter).items():
        if name != "attempts" and fact is not None:
            label = "calls" if name == "retry_count" else name  # it counts the first call too
            yield f"{label:16} {safe(str(fact), 1024)}"
    for number, attempt in enumerate(letter.trail.attempts, start=1):
        yield f"{'attempt':16} {number}: {attempt.error_class or 'ok'} after {attempt.latency_ms:,} ms at {_called(attempt)}"
    record = letter.record
    limit = max(SHOWN_BYTES, len(record.value or b"")) if full else SHOWN_BYTES
    yield f"{'key':16} {safe_bytes(record.key) if reveal else _sized(record.key)}"
    for header in record.headers:
        if not header[0].startswith("headrace_"):
            yield f"{'header':16} {_header(header, reveal=reveal)}"
    yield f"{'value':16} {_sized(record.value)}" + ("" if reveal else "; --reveal shows it, and is logged")
    if reveal and record.value is not None:
        yield safe_bytes(record.value, limit)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Aligned columns, as wide as they need; cells are made safe."""
    lines = [list(head), *([safe(cell, _CELL) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(head))]
    for row in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _header(header: Header, *, reveal: bool) -> str:
    name, value = header
    return f"{safe(name)}: {safe_bytes(value, 4096) if reveal else _sized(value)}"


def _sized(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    return f"{len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}" if len(data) > 64 else f"{len(data):,} bytes"


def _when(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else iso(epoch_ms)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
