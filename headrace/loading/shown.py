"""The effective configuration as an operator may see it: every value with the place it came from, and no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from headrace.config import DEFAULT_POLICIES, Settings
from headrace.document import FieldPath
from headrace.loading.loader import Loaded

HIDDEN = "********"
DEFAULT = "default"
# Of kafka.config what may be seen; anything else in it may be a secret, a number too: YAML reads a password of digits as one.
_OPEN = re.compile(
    r".*\.location|security\.protocol|sasl\.mechanisms?|sasl\.username|client\.(rack|id|dns\.lookup)|sasl\.oauthbearer\.(method|client\.id|scope)"
    r"|ssl\.endpoint\.identification\.algorithm|enable\..*|broker\.address\.family|debug|.*\.(ms|bytes|kbytes|messages)"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One value: the field's path with dots, what may be seen of the value, and where it came from."""

    field: str
    value: Any
    origin: str


def effective(loaded: Loaded) -> Iterator[Shown]:
    """Every field in the model's order, the policy of every error class included."""
    settings = loaded.settings
    for name in Settings.model_fields:
        if name == "policy":
            for error_class in DEFAULT_POLICIES:
                given = settings.policy.get(error_class)
                yield from _section(
                    loaded, ("policy", str(error_class)), settings.policy_of(error_class), given.model_fields_set if given else set()
                )
        elif name == "topics":
            file = str(settings.topics_file or "topics.yaml")
            yield from (Shown(f"topics.{role}", topic, file) for role, topic in settings.topics.model_dump().items())
        else:
            yield from _value(loaded, (name,), getattr(settings, name), given=name in settings.model_fields_set)


def _section(loaded: Loaded, at: FieldPath, section: BaseModel, given: set[str]) -> Iterator[Shown]:
    for name in type(section).model_fields:
        yield from _value(loaded, (*at, name), getattr(section, name), given=name in given)


def _value(loaded: Loaded, at: FieldPath, value: Any, *, given: bool) -> Iterator[Shown]:
    if isinstance(value, BaseModel):
        yield from _section(loaded, at, value, value.model_fields_set if given else set())
    elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        for index, item in enumerate(value):
            yield from _value(loaded, (*at, index), item, given=given)
    elif isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _value(loaded, (*at, str(name)), item, given=given)
    else:
        yield Shown(".".join(map(str, at)), seen(at, value), loaded.places.near(at) if given else DEFAULT)


def seen(at: FieldPath, value: Any) -> Any:
    """What may be seen of a value: no secret, and of an address neither password nor query."""
    if at == ("redis", "url"):
        return _address(value.get_secret_value())
    if isinstance(value, SecretStr):
        return HIDDEN
    if len(at) > 2 and at[:2] == ("kafka", "config") and not isinstance(value, bool) and not _OPEN.fullmatch(".".join(map(str, at[2:]))):
        return HIDDEN
    if at[-1] == "base_url":
        return _address(str(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return list(value) if isinstance(value, tuple | set) else dict(value) if isinstance(value, Mapping) else str(value)


def _address(url: str) -> str:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = (
        f"{name}:{HIDDEN}@{host}" if colon else f"{HIDDEN}@{host}" if user else host
    )  # without a colon it may be a password that lacks one
    return parts._replace(netloc=shown, query="", fragment="").geturl()
