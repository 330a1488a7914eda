"""Bytes to a Job. What cannot be a request comes back with a `fault`, never as an exception: a bad record harms only itself."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import jiter
import orjson
import pydantic

from headrace.bigjson import dumps
from headrace.envelope import ENDPOINTS, Job, Record, Request, Trail
from headrace.errors import ErrorClass, Failure
from headrace.redact import mask
from headrace.trail import COUNT_MAX, TIME_MAX_MS, read_trail

FIELDS = frozenset(Request.model_fields) | {"prompt", "retry_count", "next_retry_at"}
BATCH_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
READABLE_BYTES = 16 << 20  # parsed, a value can take 30 times its size; a compressed batch can hide one of any size
_EPOCH_MS_FROM = 100_000_000_000  # a smaller number is epoch seconds: as milliseconds it would be before 1973
_EPOCH, _MS = datetime.fromtimestamp(0, UTC), timedelta(milliseconds=1)  # exact, and rounded up: what is due must not come early
_KEY_NAMED = re.compile(r'duplicate key ".*" at', re.DOTALL)


class _Fault(ValueError):
    """Ends decoding with a failure."""

    def __init__(self, message: str, error_class: ErrorClass = ErrorClass.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.failure = Failure(error_class, mask(message))


Decoder = Callable[[Record], Job]


def decode_main(record: Record) -> Job:
    """A record of the main topic: origin and hop in its headers count only beside a replay id."""
    return decode(record, trusted=False)


def decode_retry(record: Record) -> Job:
    """A record of the retry topic: its headers are ours, or of whom we trust to write there."""
    return decode(record, trusted=True)


def decode_any(record: Record) -> Job:
    """A dead letter: any bytes at all."""
    return Job(record, read_trail(record, trusted=True))


def decode(record: Record, *, trusted: bool = False) -> Job:
    """The job in a record. Beside a fault, request id and fingerprint are given whenever they could be read."""
    try:
        return _decode(record, trusted=trusted)
    except Exception as error:  # noqa: BLE001  whatever bytes can still bring about: this record's end, not its batch's
        fault = Failure(ErrorClass.UNDECODABLE, f"the record cannot be read: {type(error).__name__}")
        return Job(record, Trail(record.position), fault=fault)


def _decode(record: Record, *, trusted: bool) -> Job:
    trail = read_trail(record, trusted=trusted)
    try:
        data = _object(record.value)
        request_id = _request_id(data)
    except _Fault as fault:
        return Job(record, trail, fault=fault.failure)
    try:
        request, fingerprint = _request(data, request_id)
        trail = _trail_from_body(data, request, trail, record)
    except _Fault as fault:
        return Job(record, trail, request_id=request_id, fingerprint=_fingerprint_of_faulty(data), fault=fault.failure)
    return Job(record, trail, request_id, fingerprint, request)


def _object(value: bytes | None) -> dict[str, Any]:
    if not value:
        raise _Fault("the record has no value; a request is a JSON object", ErrorClass.UNDECODABLE)
    if len(value) > READABLE_BYTES:
        raise _Fault(f"the value has {len(value)} bytes; at most {READABLE_BYTES} are read", ErrorClass.TOO_LARGE)
    try:
        orjson.loads(value)  # refuses what jiter lets pass: numbers beyond a double, such as 1e999
        data = jiter.from_json(value, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        reason = _KEY_NAMED.sub("duplicate key at", str(error))
        raise _Fault(f"the value is not JSON we accept: {reason}", ErrorClass.UNDECODABLE) from None
    if not isinstance(data, dict):
        raise _Fault("the value is JSON, but not an object", ErrorClass.UNDECODABLE)
    return data


def _request_id(data: dict[str, Any]) -> str:
    value = data.get("request_id", data.get("custom_id"))
    if not isinstance(value, str) or not _REQUEST_ID.fullmatch(value):
        raise _Fault("request_id: missing or malformed; give 1-128 characters of A-Z a-z 0-9 . _ : -")
    return value


def _request(data: dict[str, Any], request_id: str) -> tuple[Request, str]:
    fields = dict(data)
    fields["request_id"] = request_id
    if "custom_id" in data and "request_id" not in data:
        _from_batch_line(fields)
    prompt, body = fields.pop("prompt", None), fields.get("body")
    if (prompt is None) == (body is None):
        raise _Fault("body or prompt: give exactly one of the two")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise _Fault("prompt: must be a string")
        fields["body"] = {"messages": [{"role": "user", "content": prompt}]}
    elif isinstance(body, dict):
        _check_body(body)
    try:
        request = Request.model_validate(fields)
    except pydantic.ValidationError as error:
        raise _Fault(_reasons(error)) from None
    for name in ("created_at", "deadline_at"):
        moment: datetime | None = getattr(request, name)
        if moment is not None and moment.tzinfo is None:
            raise _Fault(f"{name}: has no time zone; write RFC 3339, such as 2027-01-31T12:00:00Z")
    return request, _fingerprint(request.endpoint, request.body if prompt is None else prompt)


def _from_batch_line(fields: dict[str, Any]) -> None:
    if fields.get("method", "POST") != "POST":
        raise _Fault("method: must be POST")
    if fields.get("url") not in ENDPOINTS:
        raise _Fault("url: must be one of " + ", ".join(ENDPOINTS))
    if fields.get("body") is None:
        raise _Fault("body: a line of the batch format needs one; prompt goes with request_id only")
    fields["endpoint"] = fields["url"]


def _check_body(body: dict[str, Any]) -> None:
    if body.get("stream"):
        raise _Fault("body.stream: a result is one record, so streaming is refused; leave it out")
    if body.get("background"):
        raise _Fault("body.background: the answer would come outside this call, so it is refused; leave it out")
    if not isinstance(body.get("model", ""), str):
        raise _Fault("body.model: must be a string")


def _reasons(error: pydantic.ValidationError) -> str:
    """By field: what stands behind it in a path may be a name of the producer's making."""
    return "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors(include_input=False, include_url=False)[:5])


def _fingerprint(endpoint: str, content: object) -> str:
    try:
        canonical = dumps(content, sort_keys=True)
    except TypeError as error:
        raise _Fault(f"body: cannot be sent as JSON: {error}") from None
    return hashlib.blake2b(endpoint.encode() + b"\0" + canonical, digest_size=12).hexdigest()


def _fingerprint_of_faulty(data: dict[str, Any]) -> str:
    """A request that fails validation is claimed too; its fingerprint covers whatever it says."""
    try:
        return _fingerprint(str(data.get("endpoint"))[:64], [data.get("body"), data.get("prompt")])
    except _Fault:
        return "0" * 24


def _trail_from_body(data: dict[str, Any], request: Request, trail: Trail, record: Record) -> Trail:
    """What a hand-written producer put into the JSON counts where no header says otherwise (a replay's count of 0 does)."""
    changes: dict[str, Any] = {}
    if "retry_count" in data and not any(name == "headrace_retry_count" for name, _ in record.headers or ()):
        changes["retry_count"] = _retry_count(data["retry_count"])
    if "next_retry_at" in data and trail.next_retry_at_ms is None:
        changes["next_retry_at_ms"] = parse_time_ms(data["next_retry_at"], "next_retry_at")
    if request.deadline_at is not None and trail.deadline_at_ms is None:
        changes["deadline_at_ms"] = int(request.deadline_at.timestamp() * 1000)
    return trail._replace(**changes) if changes else trail


def _retry_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Fault("retry_count: must be a whole number from 0")
    return min(value, COUNT_MAX)


def parse_time_ms(value: object, name: str) -> int | None:
    """Epoch milliseconds of an RFC 3339 text, epoch seconds or epoch milliseconds. Raises ValueError naming the field."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value) or value < 0:
            raise _Fault(f"{name}: must be a time")
        return min(math.ceil(value if value >= _EPOCH_MS_FROM else value * 1000), TIME_MAX_MS)
    if not isinstance(value, str) or len(value) > 64:
        raise _Fault(f"{name}: must be RFC 3339, epoch seconds or epoch milliseconds")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise _Fault(f"{name}: is not RFC 3339; write for example 2027-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise _Fault(f"{name}: has no time zone; write RFC 3339, such as 2027-01-31T12:00:00Z")
    return min(max(0, -((_EPOCH - moment) // _MS)), TIME_MAX_MS)
