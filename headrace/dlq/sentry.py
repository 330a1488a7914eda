"""Sends alerts to Sentry through a client of its own: nothing global is touched, and the event is rebuilt from what may leave.

When to send, how often and what to do about a failure is `outlet`'s work.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import warnings
from importlib.metadata import version
from typing import Any

import sentry_sdk
import urllib3
from pydantic import SecretStr
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from sentry_sdk.utils import BadDsn

from headrace.dlq.alert import Alert, SinkBusy, SinkRefused
from headrace.dlq.console import iso
from headrace.errors import ConfigError, HeadraceError
from headrace.redact import mask, plain

TAGS = frozenset({"error_class", "provider", "model", "topic", "pipeline"})
EXTRAS = frozenset({"request_id", "code", "count", "attempts", "replay_count", "origin", "position"})
TIMES = frozenset({"first_at", "last_at"})
_KEPT = ("event_id", "timestamp", "level", "logger", "platform", "release", "environment")
_ID = re.compile(r"[A-Za-z0-9._:/+-]{1,300}")
_BUSY = (429, 503)
_DEFAULT_PAUSE_S = 60.0


class SentryFailed(HeadraceError):
    """Sentry answered with something other than an acceptance, or not at all."""


class _Outbox(Transport):
    """Takes what the SDK wants to send: its own transports swallow every failure, and a failure must be counted."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)


class Sentry:
    """A sink. One request at a time, of at most `timeout_s` seconds, in a thread; `send` raises unless Sentry took it."""

    name = "sentry"

    def __init__(self, dsn: SecretStr, *, timeout_s: float = 5.0) -> None:
        secret = dsn.get_secret_value()
        try:
            self._outbox = _Outbox({"dsn": secret})
            self._client = _client(secret, self._outbox)
        except BadDsn:
            raise ConfigError(["SENTRY_DSN: is no Sentry DSN; it reads https://KEY@HOST/PROJECT"]) from None
        self._http = urllib3.PoolManager(num_pools=1, retries=False, timeout=urllib3.Timeout(total=timeout_s))

    async def send(self, alert: Alert) -> None:
        """Send one event. Raises SinkBusy, SinkRefused or SentryFailed."""
        self._outbox.envelopes.clear()
        self._client.capture_event(_event(alert))
        if not self._outbox.envelopes:
            raise SinkRefused("the SDK made no event of it")
        await asyncio.to_thread(self._post, self._outbox.envelopes.pop())

    def _post(self, envelope: Envelope) -> None:
        dsn = self._outbox.parsed_dsn
        if dsn is None:
            raise SinkRefused("no DSN")
        auth = dsn.to_auth("headrace")
        headers = {"X-Sentry-Auth": auth.to_header(), "Content-Type": "application/x-sentry-envelope", "Content-Encoding": "gzip"}
        try:
            answer = self._http.request(
                "POST", auth.get_api_url(), body=gzip.compress(envelope.serialize()), headers=headers, preload_content=False
            )
            answer.close()  # unread: the status says all, and a body may drip for ever
        except urllib3.exceptions.HTTPError as error:
            raise SentryFailed(f"cannot reach Sentry: {type(error).__name__}") from None
        _judge(answer.status, answer.headers.get("Retry-After"))


def _client(dsn: str, outbox: _Outbox) -> sentry_sdk.Client:
    with warnings.catch_warnings():
        # Deprecated from 2.75 on, and the only name for it before.
        warnings.filterwarnings("ignore", message="The send_default_pii option", category=DeprecationWarning)
        return sentry_sdk.Client(
            dsn=dsn,
            transport=outbox,
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            send_default_pii=False,
            include_local_variables=False,
            include_source_context=False,
            max_request_body_size="never",
            max_breadcrumbs=0,
            attach_stacktrace=False,
            send_client_reports=False,
            server_name="",
            release=f"headrace@{version('headrace')}",  # else the SDK runs git to find one
            spotlight=False,
            before_send=_scrub,
        )


def _judge(status: int, retry_after: str | None) -> None:
    if 200 <= status < 300:
        return
    if status in _BUSY:
        raise SinkBusy(_seconds(retry_after))
    if status in (400, 413, 422):
        raise SinkRefused(f"Sentry answered {status}")
    # 401, 403 and 404 too: a key or project that is put right must find what waited.
    raise SentryFailed(f"Sentry answered {status}")


def _seconds(retry_after: str | None) -> float:
    if retry_after and retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6:
        return min(float(retry_after), 3600.0)
    return _DEFAULT_PAUSE_S


def _event(alert: Alert) -> Any:
    return {
        "level": "error",
        "logger": "headrace.dlq",
        "fingerprint": list(alert.fingerprint),
        "tags": {name: getattr(alert, name) for name in TAGS},
        "extra": {name: getattr(alert, name) for name in EXTRAS} | {"first_at": iso(alert.first_at_ms), "last_at": iso(alert.last_at_ms)},
    }


def _scrub(event: Any, _hint: Any) -> Any:
    """Rebuild the event from what may leave; whatever else the SDK or a later version of it adds stays here."""
    tags = {name: plain(str(value)) for name, value in (event.get("tags") or {}).items() if name in TAGS}
    extra = {name: _safe(value) for name, value in (event.get("extra") or {}).items() if name in EXTRAS or name in TIMES}
    kept: dict[str, Any] = {name: event[name] for name in _KEPT if name in event}
    kept["fingerprint"] = [str(part) for part in event.get("fingerprint", [])][:4]
    kept["tags"] = tags
    kept["extra"] = extra
    kept["message"] = _title(tags, extra.get("count"))
    return kept


def _title(tags: dict[str, str], count: object) -> str:
    what = "dead letter" if count == 1 else f"{count} dead letters"
    return f"{what}: {tags.get('error_class')} at {tags.get('provider')}, {tags.get('model')}"


def _safe(value: object) -> object:
    """Ids, positions and times as they are; any other text masked."""
    return value if value is None or isinstance(value, int) or _ID.fullmatch(str(value)) else mask(str(value), limit=256)
