"""One address of a provider as it is called: its key, what is in flight, and how it has been doing. Choosing among several is `balance`'s."""

from __future__ import annotations

import hashlib
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr

from headrace import __version__
from headrace.config import ProviderSettings, Server
from headrace.llm.transport import Transport

_SECRET_CHARS = 6  # a shorter header is a word that stands anywhere


class EndpointState(NamedTuple):
    """An endpoint at a moment. `out_s` is how long it is still left out, `why` says for what: an error class or `health`; None: it is in.

    `healthy` is what its health check says; None: there is none.
    """

    provider: str
    endpoint: str
    key_id: str
    in_flight: int
    out_s: float | None
    why: str | None
    healthy: bool | None = None


class Key(NamedTuple):
    """A key as calls carry it. `secrets` are what must not be told of it, `key_id` names it without giving it away."""

    key_id: str
    headers: dict[str, str]
    secrets: tuple[bytes, ...]


class Endpoint:
    """Mutable, and of the event loop alone. Times are monotonic seconds."""

    __slots__ = (
        "current", "down", "failures", "in_flight", "key", "label", "left_out", "length_s", "out_until_s", "probing", "provider",
        "returned_at_s", "server", "settings", "transport", "why",
    )  # fmt: skip

    def __init__(self, settings: ProviderSettings, server: Server, transport: Transport) -> None:
        self.settings = settings
        self.provider = settings.name
        self.server = server
        self.transport = transport
        self.label = label_of(server.base_url)
        self.key = self._key(server.api_key, ())
        self.in_flight = 0
        self.current = 0.0  # of the weighted round
        self.failures = 0  # in a row
        self.left_out = False
        self.out_until_s = 0.0
        self.length_s = 0.0
        self.returned_at_s = 0.0
        self.probing = False
        self.down = False  # says its health check
        self.why: str | None = None

    def rekey(self, value: str) -> bool:
        """From now on called with this key; whether it is another one. Answers to the old one may still be on their way."""
        key = self._key(SecretStr(value), self.key.secrets[-8:])
        changed, self.key = key.key_id != self.key.key_id, key
        return changed

    def state(self, now_s: float) -> EndpointState:
        """How it stands."""
        out_s = max(0.0, self.out_until_s - now_s) if self.left_out else 0.0 if self.down else None
        why = "health" if self.down and not self.left_out else self.why if self.left_out else None
        healthy = None if self.settings.health is None else not self.down
        return EndpointState(self.provider, self.label, self.key.key_id, self.in_flight, out_s, why, healthy)

    def _key(self, value: SecretStr | None, before: tuple[bytes, ...]) -> Key:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"headrace/{__version__}",
        }
        text = None if value is None else value.get_secret_value()
        if text is not None:
            bearer = (self.settings.auth or ("api-key" if self.settings.kind == "azure" else "bearer")) == "bearer"
            headers |= {"Authorization": f"Bearer {text}"} if bearer else {"api-key": text}
        own = [one.get_secret_value() for one in self.server.headers.values()]
        headers |= {name: one.get_secret_value() for name, one in self.server.headers.items()}
        secrets = tuple(one.encode("utf-8", "surrogateescape") for one in ([text] if text else []) + own if len(one) >= _SECRET_CHARS)
        return Key(_key_id(text), headers, tuple(dict.fromkeys((*before, *secrets))))


def discreet(text: bytes, key: Key) -> bytes:
    """The text without key and headers, whatever they look like: a provider may say what it was given."""
    for secret in key.secrets:
        text = text.replace(secret, b"<hidden>")
    return text


def key_id_of(provider: ProviderSettings) -> str:
    """Eight hex digits that tell keys apart; `none` without a key."""
    return _key_id(None if provider.api_key is None else provider.api_key.get_secret_value())


def label_of(url: str) -> str:
    """An address without user, password and query: for events, labels and displays."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _key_id(text: str | None) -> str:
    return "none" if text is None else hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
