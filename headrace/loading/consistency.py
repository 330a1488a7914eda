"""What only several fields together, or the sense of one, can get wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from headrace.config import Settings
from headrace.document import FieldPath, nearest
from headrace.loading.provider_faults import provider_faults
from headrace.oauth import why_unusable

# What the engine must decide alone: set from outside, each would break a promise.
RESERVED = frozenset({
    "bootstrap.servers", "group.id", "group.instance.id", "group.protocol", "transactional.id", "enable.auto.commit", "enable.auto.offset.store",
    "isolation.level", "auto.offset.reset", "enable.idempotence", "acks", "request.required.acks", "partition.assignment.strategy",
    "max.poll.interval.ms", "transaction.timeout.ms", "partitioner", "message.max.bytes", "batch.size",
})  # fmt: skip
_ADDRESS = re.compile(r"(?:[A-Za-z0-9+_-]+://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/@\[\]]+):(\d{1,5})")
_REDIS_FAULT = (
    ("redis", "url"),
    "redis.url: must be redis://, rediss:// or unix://, such as redis://:password@host:6379/0",
)
# Of what redis-py reads from a query; its own complaint about them would quote the value.
_REDIS_NUMBERS = frozenset({
    "db", "socket_timeout", "socket_connect_timeout", "socket_read_size", "max_connections", "health_check_interval", "timeout", "protocol",
    "ssl_min_version",
})  # fmt: skip


def consistency(settings: Settings) -> Iterator[tuple[FieldPath, str]]:
    """What the single fields cannot know, as (path, fault with its remedy)."""
    yield from _addresses(settings)
    for name in sorted(RESERVED & (settings.kafka.config.keys() | settings.kafka.secret_files.keys())):
        yield ("kafka", "config", name), f"kafka.config.{name}: is Headrace's own to set; remove it"
    yield from _tokens(settings)
    yield from _providers(settings)
    yield from _chains(settings)
    yield from provider_faults(settings)
    for error_class, policy in settings.policy.items():
        if policy.base_s > policy.cap_s:
            yield ("policy", str(error_class)), f"policy.{error_class}: base_s is above cap_s; lower it"
    if settings.pause.first_s > settings.pause.cap_s:
        yield ("pause",), "pause: first_s is above cap_s; lower it"


def _tokens(settings: Settings) -> Iterator[tuple[FieldPath, str]]:
    """OAUTHBEARER without a source of tokens does not fail: it waits for one for ever."""
    config, source = settings.kafka.config, settings.kafka.oauth_token
    mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms"))
    others = config.get("sasl.oauthbearer.method") == "oidc" or str(config.get("enable.sasl.oauthbearer.unsecure.jwt")).lower() == "true"
    if source is not None and mechanism != "OAUTHBEARER":
        yield ("kafka", "oauth_token"), "kafka.oauth_token: is for sasl.mechanism OAUTHBEARER in kafka.config; set that, or remove it"
    elif source is not None and (reason := why_unusable(source)) is not None:
        yield ("kafka", "oauth_token"), f"kafka.oauth_token: {reason}"
    elif source is None and mechanism == "OAUTHBEARER" and not others:
        yield (
            ("kafka", "config"),
            "kafka.config: OAUTHBEARER has no source of tokens; set sasl.oauthbearer.method to oidc, with its address, or kafka.oauth_token",
        )


def _providers(settings: Settings) -> Iterator[tuple[FieldPath, str]]:
    names = [provider.name for provider in settings.providers]
    for index, provider in enumerate(settings.providers):
        at: FieldPath = ("providers", index)
        yield from _base_url((*at, "base_url"), provider.base_url)
        for number, endpoint in enumerate(provider.endpoints):
            yield from _base_url((*at, "endpoints", number, "base_url"), endpoint.base_url)
        if provider.name in names[:index]:
            yield (*at, "name"), f"providers.{index}.name: {provider.name} is the name of another provider too; give each its own"
        if "connect_timeout_s" in provider.model_fields_set and provider.connect_timeout_s > provider.timeout_s:
            yield at, f"providers.{index}: connect_timeout_s is above timeout_s; lower it"
    if not settings.providers:
        yield ("providers",), "providers: is empty; list one at least, or leave it out for OpenAI"


def _base_url(at: FieldPath, address: str) -> Iterator[tuple[FieldPath, str]]:
    name = ".".join(map(str, at))
    try:
        url = urlsplit(address)
        fits = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, or brackets that do not close
        fits = False
    if not fits:
        yield at, f"{name}: must be an http:// or https:// address"
    elif url.username or url.password:
        yield at, f"{name}: holds a user name or password; use api_key or headers"


def _chains(settings: Settings) -> Iterator[tuple[FieldPath, str]]:
    names = [provider.name for provider in settings.providers]
    for model, chain in settings.models.items():
        for index, link in enumerate(chain):
            if link.provider not in names:
                hint = nearest(link.provider, names) or f"; known: {', '.join(names)}"
                yield ("models", model, index, "provider"), f"models.{model}.{index}: no provider is called {link.provider}{hint}"


def _addresses(settings: Settings) -> Iterator[tuple[FieldPath, str]]:
    for address in settings.kafka.bootstrap.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if not match or not 0 < int(match[1]) < 65_536:
            yield ("kafka", "bootstrap"), "kafka.bootstrap: must be host:port, or several with commas between"
            break
    url = settings.redis.url.get_secret_value()
    try:
        parts = urlsplit(url)
        fits = parts.scheme == "unix" or (parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        yield _REDIS_FAULT
        return
    if not fits or (parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path)):
        yield _REDIS_FAULT
    for name, values in parse_qs(parts.query).items():
        if name in _REDIS_NUMBERS and not all(re.fullmatch(r"\d+(\.\d+)?", value) for value in values):
            yield ("redis", "url"), f"redis.url: {name} in it must be a number"
