"""Where a provider's address and key came from, for an operator to read at the start. No secret is in it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.config import ProviderSettings


@dataclass(frozen=True, slots=True)
class ProviderOrigin:
    """A provider, its effective address without user, password and query, and the origin of address and key."""

    name: str
    base_url: str
    base_url_from: str
    key_from: str

    def fields(self) -> dict[str, str]:
        """What a log line of it says."""
        return {"provider": self.name, "base_url": self.base_url, "base_url_from": self.base_url_from, "key": self.key_from}


def origin(provider: ProviderSettings, base_url_from: str | None, key_from: str | None) -> ProviderOrigin:
    """The origin as text; where no key is set, that is what is said."""
    keyed = any(server.api_key is not None for server in provider.servers())
    key = (key_from or "given") if keyed else "none is set" + (", but headers are" if provider.headers else "")
    addresses = ", ".join(_bare(server.base_url) for server in provider.servers())
    return ProviderOrigin(provider.name, addresses, "endpoints" if provider.endpoints else base_url_from or "default", key)


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
