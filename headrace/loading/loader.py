"""Reads the configuration: environment beats `headrace.yaml` beats default, and every fault is named at once, before anything starts.

A message names field, place and remedy, and never the value of a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from headrace.config import Settings
from headrace.document import Document, FieldPath, read
from headrace.errors import ConfigError
from headrace.loading.environment import FROM_ENV, UNDERSTOOD, Environment
from headrace.loading.explain import consistency, explain
from headrace.loading.origin import ProviderOrigin, origin
from headrace.topics import file as topicfile
from headrace.topics.client_check import config_faults

FILE = "headrace.yaml"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, where each provider's address and key came from, and notes: what was set and is not used, one line each."""

    settings: Settings
    providers: tuple[ProviderOrigin, ...]
    notes: tuple[str, ...]


def load(env: Mapping[str, str] | None = None, path: Path | None = None) -> Settings:
    """The settings from `env` (the process's, if not given) and the file at `path`, else HEADRACE_CONFIG, else ./headrace.yaml.

    Topic names come from `topics.yaml` (`topicfile.find` says which). Raises ConfigError with one line per fault.
    """
    return load_all(env, path).settings


def load_all(env: Mapping[str, str] | None = None, path: Path | None = None) -> Loaded:
    """As `load`, with what an operator should be told of it."""
    loading = _Load(Environment(os.environ if env is None else env), path)
    settings = loading.settings()
    providers = tuple(
        origin(provider, loading.origin_of(index, "base_url"), loading.origin_of(index, "api_key"))
        for index, provider in enumerate(settings.providers)
    )
    unused = [f"providers.{index} ({p.name}): only the first provider is called" for index, p in enumerate(settings.providers) if index]
    return Loaded(settings, providers, (*loading.notes, *unused))


class _Load:
    """One load: what was found, where each value came from, the faults so far, and notes on what is not used."""

    def __init__(self, environment: Environment, path: Path | None) -> None:
        self.env = environment
        self.path = path
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.sources: dict[FieldPath, str] = {}
        self.document = Document(FILE)

    def settings(self) -> Settings:
        data = self._file()
        self._overlay(data)
        self._providers(data)
        self._topics(data)
        self.faults += self.env.faults
        settings = self._validated(data)
        self.faults += [f"{self.place(at)}: {text}" for at, text in consistency(settings)]
        self.faults += [self._kafka_fault(name, reason) for name, reason in config_faults(settings)]
        if self.faults:
            raise ConfigError(list(dict.fromkeys(self.faults)))
        return settings

    def _kafka_fault(self, name: str | None, reason: str) -> str:
        at = ("kafka", "config") if name is None else ("kafka", "config", name)
        return f"{self.place(at)}: {'.'.join(at)}: {reason}; correct it, or remove it"

    def origin_of(self, index: int, field: str) -> str | None:
        """Where this field of a provider came from; None where it is the default."""
        at = ("providers", index, field)
        return self.sources.get(at) or (self.document.place(at) if at in self.document.lines else None)

    def _validated(self, data: dict[str, Any]) -> Settings:
        """The settings; with faults, those of what is left without the faulty fields, so that `consistency` can judge the rest."""
        for _ in range(3):
            try:
                return Settings.model_validate(data)
            except pydantic.ValidationError as error:
                errors = error.errors(include_url=False, include_input=False)
            for fault in errors:
                at = tuple(part for part in fault["loc"] if part != "[key]")
                self.faults.append(explain(dict(fault), self.place(at)))
                _drop(data, at)
        raise ConfigError(list(dict.fromkeys(self.faults)))

    def place(self, at: FieldPath) -> str:
        """Where the value at this path came from: a variable, or a line of the file."""
        for end in range(len(at), 0, -1):
            if at[:end] in self.sources:
                return self.sources[at[:end]]
            if at[:end] in self.document.lines:
                return self.document.place(at)
        return self.document.name

    def _file(self) -> dict[str, Any]:
        named = self.env.take("HEADRACE_CONFIG")
        path = self.path or (Path(named) if named else Path(FILE))
        if self.path is None and not named and not path.exists():
            return {}
        try:
            self.document = read(path)
        except ConfigError as error:
            self.faults += error.faults
            return {}
        return {name: value for name, value in self.document.data.items() if value is not None}

    def _overlay(self, data: dict[str, Any]) -> None:
        for name, at in FROM_ENV.items():
            if (value := self.env.take(name)) is None:
                continue
            parsed: Any = self.env.json_object(name, value) if name == "HEADRACE_KAFKA_CONFIG" else value
            if parsed is None:
                continue
            target = _section(data, at[:-1])
            if target is None:
                continue  # the file's section is no mapping: the model names that fault
            if isinstance(parsed, dict):
                self.sources |= {(*at, key): name for key in parsed}
            if isinstance(parsed, dict) and isinstance(target.get(at[-1]), dict):
                target[at[-1]] = {**target[at[-1]], **parsed}
            else:
                target[at[-1]] = parsed
                self.sources[at] = name
        self.faults += self.env.unknown(UNDERSTOOD)

    def _providers(self, data: dict[str, Any]) -> None:
        listed = data.get("providers", [{}])
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            return
        providers = [dict(item) for item in listed]
        for index, provider in enumerate(providers):
            self._key_from(provider, index)
        self._openai(providers)
        if "providers" in data or providers != [{}]:
            data["providers"] = providers

    def _key_from(self, provider: dict[str, Any], index: int) -> None:
        """`api_key_env: NAME` and `api_key_file: PATH` keep a key out of the file."""
        for field in ("api_key_env", "api_key_file"):
            if field not in provider:
                continue
            source = str(provider.pop(field))
            at = ("providers", index, field)
            value = self.env.take(source) if field == "api_key_env" else self.env.secret_in(Path(source), self.place(at))
            if field == "api_key_env" and not value:
                self.faults.append(
                    f"{self.place(at)}: providers.{index}.api_key_env: the variable {source} is not set; set it, or name another"
                )
            if "api_key" in provider:
                self.faults.append(
                    f"{self.place(at)}: providers.{index}: two keys are given; keep one of api_key, api_key_env, api_key_file"
                )
            provider["api_key"] = value or None
            self.sources["providers", index, "api_key"] = source if field == "api_key_env" else self.place(at)

    def _openai(self, providers: list[dict[str, Any]]) -> None:
        """OPENAI_* are for the provider named `openai` alone, which is also the one there is where none is listed.

        Another's address must not be changed by a variable that was meant for OpenAI, nor OpenAI's key be sent there.
        """
        index = next((i for i, p in enumerate(providers) if p.get("name", "openai") == "openai"), None)
        for field, name in (("api_key", "OPENAI_API_KEY"), ("base_url", "OPENAI_BASE_URL")):
            if not (value := self.env.take(name)):
                continue
            if index is None:
                self.notes.append(f"{name} is not used: it is for the provider named openai, and none of those listed is")
                continue
            providers[index][field] = value
            self.sources["providers", index, field] = name

    def _topics(self, data: dict[str, Any]) -> None:
        if "topics" in data:
            self.faults.append(f"{self.place(('topics',))}: topics: topic names are set in topics.yaml; move them there")
            del data["topics"]
        given = data.get("topics_file")
        beside = self._folder()
        base = beside if beside and ("topics_file",) not in self.sources else Path()
        path = None if given is None else base / str(given)
        try:
            file = topicfile.find(path, beside=beside)
            data["topics"] = topicfile.names_in(file).model_dump()
            data["topics_file"] = file
        except ConfigError as error:
            self.faults += error.faults

    def _folder(self) -> Path | None:
        """The folder of `headrace.yaml`, where one was read: paths in it are relative to it."""
        return self.document.path.parent if self.document.path else None


def _drop(data: Any, at: FieldPath) -> None:
    """Takes the value at this path out, so that its default applies."""
    for part in at[:-1]:
        data = data[part]
    if isinstance(data, list):
        data[int(at[-1])] = {}
    else:
        data.pop(at[-1], None)


def _section(data: dict[str, Any], at: tuple[str, ...]) -> dict[str, Any] | None:
    """The mapping at this path, made where it is missing; None where something else stands there."""
    for part in at:
        inner = data.get(part) or {}
        if not isinstance(inner, dict):
            return None
        data[part] = inner = dict(inner)
        data = inner
    return data


def missing_keys(settings: Settings) -> list[str]:
    """Providers that cannot be called for want of a key, one line each: for the workers, which call them."""
    return [
        f"providers.{index} ({provider.name}): has no key for {provider.base_url}; set {_key_place(provider.name)} in {FILE}"
        for index, provider in enumerate(settings.providers)
        if provider.api_key is None and "api.openai.com" in provider.base_url and not provider.headers
    ]


def _key_place(name: str) -> str:
    return "OPENAI_API_KEY, or api_key_env" if name == "openai" else "api_key_env"
