"""The providers as listed, with the keys and addresses that variables and files give them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.document import FieldPath
from headrace.loading.environment import Environment
from headrace.loading.variables import OPENAI
from headrace.redact import plain

_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_SOURCES = ("api_key_env", "api_key_file")


def _unset(name: str) -> str:
    """What is wrong with a variable that is not there. What no variable is called may be the key itself, and is not told."""
    if _NAME.fullmatch(name) and plain(name) == name:
        return f"the variable {name} is not set; set it, or name another"
    return "no variable of that name is set; give the name of one, in capitals (a key itself is `api_key`)"


class Keys:
    """Fills in what `providers` leaves to variables and files. Faults and origins go to the environment's; notes say what is not used."""

    def __init__(self, env: Environment, place: Callable[[FieldPath], str]) -> None:
        self._env = env
        self._place = place
        self.notes: list[str] = []

    def filled(self, listed: Any) -> list[dict[str, Any]] | None:
        """The providers with their keys; None where what is listed is no list of mappings, or nothing is to be said of them."""
        if listed is not None and (not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed)):
            return None
        providers = [dict(item) for item in ([{}] if listed is None else listed)]
        for index, provider in enumerate(providers):
            self._key_of(provider, ("providers", index))
            if isinstance(endpoints := provider.get("endpoints"), list):
                provider["endpoints"] = [dict(one) if isinstance(one, dict) else one for one in endpoints]
                for number, endpoint in enumerate(provider["endpoints"]):
                    if isinstance(endpoint, dict):
                        self._key_of(endpoint, ("providers", index, "endpoints", number))
        self._openai(providers)
        return None if listed is None and providers == [{}] else providers

    def _key_of(self, holder: dict[str, Any], at: FieldPath) -> None:
        """`api_key_env: NAME` and `api_key_file: PATH` keep a key out of the file; they stay, since a key may be read again."""
        named = [field for field in _SOURCES if holder.get(field) is not None]
        name = ".".join(map(str, at))
        if len(named) + (holder.get("api_key") is not None) > 1:
            place = self._place((*at, named[-1]))
            self._env.faults.append(f"{place}: {name}: two keys are given; keep one of api_key, api_key_env, api_key_file")
        for field in named:
            source, place = str(holder[field]), self._place((*at, field))
            value = self._env.take(source) if field == "api_key_env" else self._env.secret_in(Path(source), place)
            if field == "api_key_env" and not value:
                self._env.faults.append(f"{place}: {name}.api_key_env: {_unset(source)}")
            holder["api_key"] = value or None
            self._env.sources[*at, "api_key"] = source if field == "api_key_env" else place

    def _openai(self, providers: list[dict[str, Any]]) -> None:
        """OPENAI_* are for the provider named `openai` alone, which is also the one there is where none is listed.

        Another's address must not be changed by a variable that was meant for OpenAI, nor OpenAI's key be sent there.
        """
        index = next((i for i, p in enumerate(providers) if p.get("name", "openai") == "openai"), None)
        for name, field in OPENAI.items():
            if not (value := self._env.take(name)):
                continue
            if index is None:
                self.notes.append(f"{name} is not used: it is for the provider named openai, and none of those listed is")
                continue
            provider = providers[index]
            if field == "api_key":
                for other in _SOURCES:
                    provider.pop(other, None)
                if (file := self._env.file_of(name)) is not None:
                    provider["api_key_file"] = file  # to be read again when it changes
            provider[field] = value
            self._env.sources["providers", index, field] = name
