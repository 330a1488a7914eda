"""Faults of the settings in an operator's words: what a model's error means, and what only several fields together can get wrong."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel

from headrace.config import Settings
from headrace.document import FieldPath, nearest
from headrace.errors import ErrorClass

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
_PLAIN = {
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "invalid_key": "is no field: names are text",
}
_EXTRA = {"providers": ("api_key_env", "api_key_file")}


def explain(error: dict[str, Any], place: str) -> str:
    """One line for an error of the model. The value never appears: it may be a secret."""
    at = tuple(part for part in error["loc"] if part != "[key]")
    name = ".".join(map(str, at))
    if error["type"] == "extra_forbidden":
        known = _fields_at(at[:-1])
        hint = nearest(str(at[-1]), known) or "; known: " + ", ".join(known)
        return f"{place}: {name}: unknown field{hint}"
    if at[0] == "policy" and error["type"] == "enum":
        return f"{place}: {name}: no such error class{nearest(str(at[-1]), map(str, ErrorClass))}"
    text = _PLAIN.get(error["type"]) or error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{place}: {name}: {text[:1].lower()}{text[1:]}"


def consistency(settings: Settings) -> Iterator[tuple[FieldPath, str]]:
    """What the single fields cannot know, as (path, fault with its remedy)."""
    yield from _addresses(settings)
    for name in sorted(RESERVED & settings.kafka.config.keys()):
        yield ("kafka", "config", name), f"kafka.config.{name}: is Headrace's own to set; remove it"
    names = [provider.name for provider in settings.providers]
    for index, provider in enumerate(settings.providers):
        url = urlsplit(provider.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            yield ("providers", index, "base_url"), f"providers.{index}.base_url: must be an http:// or https:// address"
        elif url.username or url.password:
            yield ("providers", index, "base_url"), f"providers.{index}.base_url: holds a user name or password; use api_key or headers"
        if provider.name in names[:index]:
            yield (
                ("providers", index, "name"),
                f"providers.{index}.name: {provider.name} is the name of another provider too; give each its own",
            )
        if "connect_timeout_s" in provider.model_fields_set and provider.connect_timeout_s > provider.timeout_s:
            yield ("providers", index), f"providers.{index}: connect_timeout_s is above timeout_s; lower it"
    if not settings.providers:
        yield ("providers",), "providers: is empty; list one at least, or leave it out for OpenAI"
    for error_class, policy in settings.policy.items():
        if policy.base_s > policy.cap_s:
            yield ("policy", str(error_class)), f"policy.{error_class}: base_s is above cap_s; lower it"
    if settings.pause.first_s > settings.pause.cap_s:
        yield ("pause",), "pause: first_s is above cap_s; lower it"


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


def _fields_at(path: FieldPath) -> list[str]:
    """The field names a mapping at this path may have."""
    model: Any = Settings
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = model.model_fields[str(part)].annotation
        else:
            model = next((arg for arg in typing.get_args(model) if isinstance(arg, type) and issubclass(arg, BaseModel)), None)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [*model.model_fields, *_EXTRA.get(str(path[0]) if path else "", ())]
    return []
