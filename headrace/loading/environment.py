"""The process's variables, and secrets in files beside them. Which there are and what they set is `variables`' work."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from headrace.document import FieldPath, nearest
from headrace.loading.variables import PREFIX, Variable, secrets, variables

SECRET_BYTES = 64 * 1024
_TEST_PREFIX = "HEADRACE_TEST_"
# Kubernetes gives every pod the address of each service, so one named `headrace` looks like our own variables.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")
_SHAPES: Mapping[type, tuple[str, str]] = {dict: ("an object", '{"name": "value"}'), list: ("a list", '[{"name": "value"}]')}


class Environment:
    """Reads variables by name; an empty one counts as not set. Faults gather in `faults`, and in `sources` what set which field."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._variables = given
        self.faults: list[str] = []
        self.sources: dict[FieldPath, str] = {}

    def settings(self) -> dict[str, Any]:
        """What the variables set, as the file would hold it."""
        data: dict[str, Any] = {}
        for variable in variables():
            value: Any = self.take(variable.name)
            if value is not None and variable.container is not None:
                value = self._json(variable, value)
            if value is None:
                continue
            if (other := self.sources.get(variable.path)) is not None:
                self.faults.append(f"{variable.name}: {other} is set too, and means the same; keep one of them")
                continue
            self._set(data, variable, value)
        return data

    def _set(self, data: dict[str, Any], variable: Variable, value: Any) -> None:
        self.sources[variable.path] = variable.name
        if isinstance(value, dict):
            self.sources |= {(*variable.path, key): variable.name for key in value}
        section = data
        for part in variable.path[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                return  # JSON of another variable that does not fit there: the model names that fault
        before = section.get(variable.path[-1])
        section[variable.path[-1]] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value

    def take(self, name: str) -> str | None:
        """The variable's value, or for a secret the content of the file that NAME_FILE names."""
        value = self._variables.get(name) or None
        file = self._variables.get(f"{name}_FILE") if name in secrets() else None
        if not file:
            return value
        if value is not None:
            self.faults.append(f"{name}: {name}_FILE is set too; keep one of them")
            return value
        return self.secret_in(Path(file), f"{name}_FILE")

    def file_of(self, name: str) -> Path | None:
        """The file that holds a secret, where NAME_FILE names one."""
        return Path(file) if (file := self._variables.get(f"{name}_FILE")) else None

    def secret_in(self, path: Path, place: str) -> str | None:
        """The content of a secret's file, without the line end that editors add."""
        try:
            with path.open("rb") as file:
                content = file.read(SECRET_BYTES + 1)
            if len(content) > SECRET_BYTES:
                self.faults.append(f"{place}: {path} is larger than {SECRET_BYTES} bytes, so it is no secret; name another file")
                return None
            value = content.decode("utf-8").strip()
        except OSError as error:
            self.faults.append(f"{place}: {_below(path)} cannot be read ({error.strerror}); check path, owner and mode")
            return None
        except UnicodeDecodeError:
            self.faults.append(f"{place}: {path} is not UTF-8 text; write the secret into it as text")
            return None
        except ValueError:
            self.faults.append(f"{place}: is no path; give the path of a file")
            return None
        if not value:
            self.faults.append(f"{place}: {path} is empty; write the secret into it")
        return value or None

    def _json(self, variable: Variable, text: str) -> Any:
        assert variable.container is not None, "asked for those that are JSON"
        what, example = _SHAPES[variable.container]
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self.faults.append(f"{variable.name}: is not JSON ({error.msg.split(':')[0]} at character {error.pos}); write it as {example}")
            return None
        if not isinstance(value, variable.container):
            self.faults.append(f"{variable.name}: is JSON, but not {what}; write it as {example}")
            return None
        return value

    def unknown(self, known: Iterable[str]) -> list[str]:
        """A fault for each HEADRACE_* variable that nothing reads: a typo would silently leave a default."""
        names = list(known)
        endings = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        return [
            f"{name}: no such variable{nearest(name.removeprefix(PREFIX), endings, prefix=PREFIX) or '; unset it'}"
            for name, value in sorted(self._variables.items())
            if name.startswith(PREFIX) and not name.startswith(_TEST_PREFIX) and name not in names and not _is_service_link(name, value)
        ]


def _below(path: Path) -> str:
    """A file that cannot be read, by the folder that is there: the rest may be the secret itself, written where its path belongs."""
    if os.path.exists(path):  # noqa: PTH110  the method raises for names that are too long
        return str(path)
    return f"the file named there, in {next((str(parent) for parent in path.parents if os.path.isdir(parent)), '/')},"  # noqa: PTH112  as above


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.search(name)) or (name.endswith("_PORT") and bool(_SERVICE_URL.match(value)))
