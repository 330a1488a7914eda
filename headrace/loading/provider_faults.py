"""What only several fields of providers, chains and policies together can get wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.config import ANY, LINKS, EndpointSettings, ProviderSettings, Settings
from headrace.document import FieldPath
from headrace.errors import ErrorClass

Faults = Iterator[tuple[FieldPath, str]]
_LINE = re.compile(r"[ -~\t]*")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VERSION = re.compile(r"v1|preview|latest|\d{4}-\d\d-\d\d(-preview)?")
# These end a request before, or without, a call: there is nobody else to ask.
_UNCALLED = frozenset({ErrorClass.EXPIRED, ErrorClass.UNDECODABLE, ErrorClass.ID_CONFLICT, ErrorClass.CANCELLED, ErrorClass.RATE_RULE})
_SHUTS = frozenset({ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH})


def provider_faults(settings: Settings) -> Faults:
    """As (path, fault with its remedy)."""
    for index, provider in enumerate(settings.providers):
        at: FieldPath = ("providers", index)
        name = f"providers.{index}"
        yield from _endpoints(provider, at, name)
        yield from _unsendable(provider, at, name)
        yield from _azure(provider, at, name)
        if provider.ejection.for_s > provider.ejection.cap_s:
            yield (*at, "ejection"), f"{name}.ejection: for_s is above cap_s; lower it"
        if provider.health is not None and provider.health.timeout_s > provider.health.every_s:
            yield (*at, "health"), f"{name}.health: timeout_s is above every_s; lower it"
    yield from _chains(settings)
    yield from _fallbacks(settings)


def _endpoints(provider: ProviderSettings, at: FieldPath, name: str) -> Faults:
    given = provider.model_fields_set
    if provider.endpoints and "base_url" in given:
        yield (*at, "base_url"), f"{name}.base_url: endpoints are listed too; keep one of the two"
    if "endpoints" in given and not provider.endpoints:
        yield (*at, "endpoints"), f"{name}.endpoints: is empty; list one at least, or give base_url"
    seen: set[tuple[str, str | None]] = set()
    for number, (endpoint, server) in enumerate(zip(provider.endpoints, provider.servers(), strict=False)):
        here = f"{name}.endpoints.{number}"
        one = (server.base_url.rstrip("/"), server.api_key.get_secret_value() if server.api_key else None)
        if one in seen:
            yield (*at, "endpoints", number), f"{here}: is listed twice, with the same key; keep one, and give it more weight"
        seen.add(one)
        if endpoint.connect_timeout_s is not None and endpoint.connect_timeout_s > server.timeout_s:
            yield (*at, "endpoints", number, "connect_timeout_s"), f"{here}: connect_timeout_s is above timeout_s; lower it"


def _unsendable(provider: ProviderSettings, at: FieldPath, name: str) -> Faults:
    """What no HTTP header can hold: every call would fail before it is sent. The value is a secret, and is not told."""
    holders: list[tuple[ProviderSettings | EndpointSettings, FieldPath, str]] = [(provider, at, name)]
    holders += [(one, (*at, "endpoints", number), f"{name}.endpoints.{number}") for number, one in enumerate(provider.endpoints)]
    for holder, here, called in holders:
        if holder.api_key is not None and not _LINE.fullmatch(holder.api_key.get_secret_value()):
            yield (*here, "api_key"), f"{called}: its key is not one line of ASCII text; write it anew, where it stands or is read from"
        for header, value in holder.headers.items():
            if not _TOKEN.fullmatch(header):
                yield (*here, "headers"), f"{called}.headers: a name in it is no name of an HTTP header; correct it"
            elif not _LINE.fullmatch(value.get_secret_value()):
                yield (*here, "headers", header), f"{called}.headers.{header}: must be one line of ASCII text"


def _azure(provider: ProviderSettings, at: FieldPath, name: str) -> Faults:
    version = provider.api_version
    if provider.kind != "azure":
        if version is not None:
            yield (*at, "api_version"), f"{name}.api_version: is Azure's; add kind: azure, or remove it"
        return
    if not provider.endpoints and "base_url" not in provider.model_fields_set:
        yield (*at, "kind"), f"{name}.base_url: is missing; for kind: azure give https://<resource>.openai.azure.com"
    if version is not None and not _VERSION.fullmatch(version):
        yield (*at, "api_version"), f"{name}.api_version: must be a date such as 2024-10-21, preview, or v1 (the default)"


def _chains(settings: Settings) -> Faults:
    for model, chain in settings.models.items():
        links = [(link.provider, link.model) for link in chain]
        for index, link in enumerate(links):
            if link in links[:index]:
                at: FieldPath = ("models", model, index)
                yield at, f"models.{model}.{index}: the same provider and model stand in it before; remove one"
    if ANY not in settings.models and len(settings.providers) > LINKS:
        message = f'providers: there are more than {LINKS}, the longest chain; say in models which "{ANY}" asks, and in which order'
        yield ("providers",), message


def _fallbacks(settings: Settings) -> Faults:
    for error_class, given in settings.policy.items():
        if "fallback" not in given.model_fields_set or given.fallback == "never":
            continue
        at: FieldPath = ("policy", str(error_class), "fallback")
        name = ".".join(map(str, at))
        policy = settings.policy_of(error_class)
        if error_class in _UNCALLED:
            yield at, f"{name}: such a request is not called for, so there is nobody else to ask; remove it"
        elif policy.fallback == "exhausted" and error_class in _SHUTS:
            yield at, f"{name}: no call is ever spent on it; use at_once or never"
        elif policy.fallback == "exhausted" and (policy.calls is None or error_class is ErrorClass.RATE_LIMITED):
            yield at, f"{name}: its calls are bounded by time alone, so they are never exhausted; use at_once or never"
