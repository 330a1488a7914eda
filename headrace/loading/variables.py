"""The environment variables Headrace understands: a regular one for every field, and the short names of the best known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from headrace.config import Settings
from headrace.config.fields import CLASS, EACH, NAME, ConfigField, fields_of
from headrace.errors import ErrorClass

PREFIX = "HEADRACE_"
KAFKA_CONFIG = ("kafka", "config")
# Beside the regular name: what one writes most often, and what others call it too.
SHORT: Mapping[str, tuple[str, ...]] = {
    "HEADRACE_KAFKA_BOOTSTRAP": ("kafka", "bootstrap"),
    "HEADRACE_KAFKA_CONFIG": KAFKA_CONFIG,
    "HEADRACE_REDIS_URL": ("redis", "url"),
    "HEADRACE_HTTP_HOST": ("http", "host"),
    "HEADRACE_METRICS_PORT": ("http", "metrics_port"),
    "HEADRACE_TOPICS": ("topics_file",),
    "SENTRY_DSN": ("sentry_dsn",),
}
OPENAI: Mapping[str, str] = {"OPENAI_API_KEY": "api_key", "OPENAI_BASE_URL": "base_url"}
OTHERS: Mapping[str, str] = {
    "HEADRACE_CONFIG": "The path of `headrace.yaml`; unset: the one in the working directory, where there is one.",
    "HEADRACE_DEBUG": "1: errors of the command line and of a handler are shown with their traceback, which may quote a record.",
    "HEADRACE_LOG_FORMAT": "`json` or `console`; unset: console on a terminal.",
    "HEADRACE_LOG_LEVEL": "`debug`, `info`, `warning` or `error`.",
}


@dataclass(frozen=True, slots=True)
class Variable:
    """What sets one field. `container` is `dict` or `list` where its value is JSON; a `secret` may stand in the file NAME_FILE names."""

    name: str
    path: tuple[str, ...]
    container: type[dict[str, Any] | list[Any]] | None
    secret: bool


def regular(path: tuple[str, ...]) -> str:
    """HEADRACE_LIMITS__CONCURRENCY for ("limits", "concurrency")."""
    return PREFIX + "__".join(path).upper()


@cache
def variables() -> tuple[Variable, ...]:
    """Every variable that sets a field, the short names first."""
    return tuple(_all())


@cache
def secrets() -> frozenset[str]:
    """The variables that may be given as NAME_FILE."""
    return frozenset({variable.name for variable in variables() if variable.secret} | {"OPENAI_API_KEY"})


def understood() -> list[str]:
    """The names of all variables, those of files included."""
    return [*(variable.name for variable in variables()), *OPENAI, *OTHERS, *(f"{name}_FILE" for name in sorted(secrets()))]


def of_field(field: ConfigField) -> tuple[str, ...]:
    """The variables that set a field, as the reference writes them. Fields inside a list or a mapping of names have none."""
    if field.path[0] == "topics" or EACH in field.path or NAME in field.path:
        return ()
    return (*(name for name, path in SHORT.items() if path == field.path), regular(field.path))


def _all() -> Iterator[Variable]:
    for field in fields_of(Settings):
        secret = field.secret or field.path == KAFKA_CONFIG
        names = of_field(field)
        for name in names:
            for error_class in ErrorClass if CLASS in field.path else (None,):
                path = tuple(str(error_class) if part == CLASS else part for part in field.path)
                yield Variable(regular(path) if error_class else name, path, field.container, secret)
