"""The environment variables Headrace understands, and secrets in files beside them. What they configure is `loading`'s work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from headrace.document import nearest

FROM_ENV: Mapping[str, tuple[str, ...]] = {
    "HEADRACE_KAFKA_BOOTSTRAP": ("kafka", "bootstrap"),
    "HEADRACE_KAFKA_CONFIG": ("kafka", "config"),
    "HEADRACE_REDIS_URL": ("redis", "url"),
    "HEADRACE_NAMESPACE": ("namespace",),
    "HEADRACE_INSTANCE": ("instance",),
    "HEADRACE_GRACE_S": ("grace_s",),
    "HEADRACE_HTTP_HOST": ("http", "host"),
    "HEADRACE_METRICS_PORT": ("http", "metrics_port"),
    "HEADRACE_HANDLER": ("handler",),
    "HEADRACE_TOPICS": ("topics_file",),
    "SENTRY_DSN": ("sentry_dsn",),
}
SECRETS = ("HEADRACE_KAFKA_CONFIG", "HEADRACE_REDIS_URL", "OPENAI_API_KEY", "SENTRY_DSN")
UNDERSTOOD = (
    *FROM_ENV,
    "HEADRACE_CONFIG",
    "HEADRACE_DEBUG",
    "HEADRACE_LOG_FORMAT",
    "HEADRACE_LOG_LEVEL",
    *(f"{name}_FILE" for name in SECRETS),
)
SECRET_BYTES = 64 * 1024
_PREFIX = "HEADRACE_"
_TEST_PREFIX = "HEADRACE_TEST_"
# Kubernetes gives every pod the address of each service, so one named `headrace` looks like our own variables.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


class Environment:
    """Reads variables by name; an empty one counts as not set. Faults gather in `faults`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.faults: list[str] = []

    def take(self, name: str) -> str | None:
        """The variable's value, or for a secret the content of the file that NAME_FILE names."""
        value = self._variables.get(name) or None
        file = self._variables.get(f"{name}_FILE") if name in SECRETS else None
        if not file:
            return value
        if value is not None:
            self.faults.append(f"{name}: {name}_FILE is set too; keep one of them")
            return value
        return self.secret_in(Path(file), f"{name}_FILE")

    def secret_in(self, path: Path, place: str) -> str | None:
        """The content of a secret's file, without the line end that editors add."""
        try:
            if path.stat().st_size > SECRET_BYTES:
                self.faults.append(f"{place}: {path} is larger than {SECRET_BYTES} bytes, so it is no secret; name another file")
                return None
            value = path.read_text("utf-8").strip()
        except OSError as error:
            self.faults.append(f"{place}: {path} cannot be read ({error.strerror}); check path, owner and mode")
            return None
        except UnicodeDecodeError:
            self.faults.append(f"{place}: {path} is not UTF-8 text; write the secret into it as text")
            return None
        if not value:
            self.faults.append(f"{place}: {path} is empty; write the secret into it")
        return value or None

    def json_object(self, name: str, text: str) -> dict[str, Any] | None:
        """A variable that holds a JSON object."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self.faults.append(f'{name}: is not JSON ({error.msg.split(":")[0]} at character {error.pos}); write it as {{"name": "value"}}')
            return None
        if not isinstance(value, dict):
            self.faults.append(f'{name}: is JSON, but not an object; write it as {{"name": "value"}}')
            return None
        return value

    def unknown(self, known: Iterable[str]) -> list[str]:
        """A fault for each HEADRACE_* variable that nothing reads: a typo would silently leave a default."""
        names = list(known)
        endings = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        return [
            f"{name}: no such variable{nearest(name.removeprefix(_PREFIX), endings, prefix=_PREFIX) or '; unset it'}"
            for name, value in sorted(self._variables.items())
            if name.startswith(_PREFIX) and not name.startswith(_TEST_PREFIX) and name not in names and not _is_service_link(name, value)
        ]


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.search(name)) or (name.endswith("_PORT") and bool(_SERVICE_URL.match(value)))
