"""Reads the configuration: environment beats `headrace.yaml` beats default, and every fault is named at once, before anything starts.

A message names field, place and remedy, and never the value of a secret.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pydantic

from headrace.config import ANY, Settings
from headrace.document import Document, FieldPath, read
from headrace.errors import ConfigError
from headrace.loading.consistency import consistency
from headrace.loading.environment import Environment
from headrace.loading.explain import explain
from headrace.loading.keys import Keys
from headrace.loading.origin import ProviderOrigin, origin
from headrace.loading.places import Places
from headrace.loading.relative import absolute, sections
from headrace.loading.sources import Given, merged
from headrace.loading.variables import understood
from headrace.topics import file as topicfile
from headrace.topics.client_check import config_faults

FILE = "headrace.yaml"
_PASSES = 3  # of the model: a fault of a field may hide another's


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, where each provider's address and key and every value came from, and notes: what was set and is not used, one line each."""

    settings: Settings
    providers: tuple[ProviderOrigin, ...]
    notes: tuple[str, ...]
    places: Places


def load(env: Mapping[str, str] | None = None, path: Path | None = None) -> Settings:
    """The settings from `env` (the process's, if not given) and the file at `path`, else HEADRACE_CONFIG, else ./headrace.yaml.

    Topic names come from `topics.yaml` (`topicfile.find` says which). Raises ConfigError with one line per fault.
    """
    return load_all(env, path).settings


def load_all(env: Mapping[str, str] | None = None, path: Path | None = None) -> Loaded:
    """As `load`, with what an operator should be told of it."""
    loading = _Load(Environment(os.environ if env is None else env), path)
    settings = loading.settings()
    places = loading.places
    providers = tuple(
        origin(provider, places.of(("providers", index, "base_url")), places.of(("providers", index, "api_key")))
        for index, provider in enumerate(settings.providers)
    )
    return Loaded(settings, providers, (*loading.notes, *_never_called(settings)), places)


def _never_called(settings: Settings) -> list[str]:
    """Providers that no chain leads to, where there is one for every model."""
    linked = {link.provider for chain in settings.models.values() for link in chain}
    return [
        f"providers.{index} ({provider.name}): is never called, since no chain of models names it"
        for index, provider in enumerate(settings.providers)
        if ANY in settings.models and provider.name not in linked
    ]


class _Load:
    """One load: what was found, where each value came from, the faults so far, and notes on what is not used."""

    def __init__(self, environment: Environment, path: Path | None) -> None:
        self.env = environment
        self.path = path
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.places = Places(environment.sources, Document(FILE))

    def settings(self) -> Settings:
        """sources → model → what only several fields together can get wrong."""
        file = self._file()
        environment = self.env.settings()
        self.faults += self.env.unknown(understood())
        keys = Keys(self.env, self.place)
        providers = keys.filled(environment.get("providers", file.get("providers")))
        self.notes += keys.notes
        first = {} if providers is None else {"providers": providers}
        settings = self._validated([lambda _: first, lambda _: environment, lambda _: file, self._secret_files, self._topics])
        self.faults += self.env.faults
        self.faults += [f"{self.place(at)}: {text}" for at, text in consistency(settings)]
        self.faults += [self._kafka_fault(name, reason) for name, reason in config_faults(settings)]
        if self.faults:
            raise ConfigError(list(dict.fromkeys(self.faults)))
        return settings

    def place(self, at: FieldPath) -> str:
        """Where the value at this path came from: a variable, or a line of the file."""
        return self.places.near(at)

    def _validated(self, givens: list[Given]) -> Settings:
        """The settings; with faults, those of what is left without the faulty fields, so that `consistency` can judge the rest."""
        dropped: list[FieldPath] = []
        for _ in range(_PASSES):
            try:
                return merged(givens, dropped)
            except pydantic.ValidationError as error:
                errors = error.errors(include_url=False, include_input=False)
            for fault in errors:
                self.faults.append(explain(dict(fault), self.place(tuple(part for part in fault["loc"] if part != "[key]"))))
                dropped.append(tuple(part for part in fault["loc"] if part != "[key]"))
        raise ConfigError(list(dict.fromkeys([*self.faults, *self.env.faults])))

    def _file(self) -> dict[str, Any]:
        """`headrace.yaml`: its paths are relative to its folder; a section that is no mapping is a fault, and left out."""
        named = self.env.take("HEADRACE_CONFIG")
        path = self.path or (Path(named) if named else Path(FILE))
        if self.path is None and not named and not path.exists():
            return {}
        try:
            document = read(path)
        except ConfigError as error:
            self.faults += error.faults
            return {}
        self.places = Places(self.env.sources, document)
        data: dict[Any, Any] = {name: value for name, value in document.data.items() if value is not None}
        if data.pop("topics", None) is not None:
            self.faults.append(f"{self.place(('topics',))}: topics: topic names are set in topics.yaml; move them there")
        for name in [name for name in data if not isinstance(name, str)]:
            self.faults.append(f"{self.place((str(name),))}: {name}: is no field: names are text")
            del data[name]
        for name in [name for name in sections() if not isinstance(data.get(name, {}), dict)]:
            self.faults.append(f"{self.place((name,))}: {name}: must be a mapping of fields")
            del data[name]
        absolute(data, path.parent)
        return data

    def _secret_files(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """`kafka.secret_files`: the values of properties, read from their files."""
        kafka = state.get("kafka", {})
        files, given = kafka.get("secret_files"), kafka.get("config")
        values: dict[str, str | None] = {}
        for name, file in files.items() if isinstance(files, dict) else ():
            at = ("kafka", "secret_files", name)
            if isinstance(given, dict) and name in given:
                self.env.faults.append(f"{self.place(at)}: {'.'.join(at)}: kafka.config has {name} too; keep one of them")
            elif (value := self.env.secret_in(Path(str(file)), self.place(at))) is not None:
                values[str(name)] = value
                self.env.sources["kafka", "config", str(name)] = self.place(at)
        return {"kafka": {"config": values}} if values else {}

    def _topics(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The topics' names, from the file that is named, or found."""
        given = state.get("topics_file")
        document = self.places.document
        try:
            file = topicfile.find(None if given is None else Path(str(given)), beside=document.path.parent if document.path else None)
            if given is None:
                self.env.sources["topics_file",] = "found"
            return {"topics": topicfile.names_in(file).model_dump(), "topics_file": file}
        except ConfigError as error:
            self.faults += error.faults
            return {}

    def _kafka_fault(self, name: str | None, reason: str) -> str:
        at = ("kafka", "config") if name is None else ("kafka", "config", name)
        return f"{self.place(at)}: {'.'.join(at)}: {reason}; correct it, or remove it"


def missing_keys(settings: Settings) -> list[str]:
    """Providers that cannot be called for want of a key, one line each: for the workers, which call them."""
    return [
        f"providers.{index} ({provider.name}): has no key for {server.base_url}; set {_key_place(provider.name)} in {FILE}"
        for index, provider in enumerate(settings.providers)
        for server in provider.servers()
        if server.api_key is None and "api.openai.com" in server.base_url and not server.headers
    ]


def keyless(settings: Settings) -> list[str]:
    """Addresses beyond this machine that are called without a key or headers, one line each: right for few, and else every call fails."""
    return [
        f"{provider.name}: {urlsplit(server.base_url).hostname} is called without a key; if it wants one, set {_key_place(provider.name)} in {FILE}"
        for provider in settings.providers
        for server in provider.servers()
        if server.api_key is None and not server.headers and not _on_loopback(server.base_url)
    ]


def _on_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _key_place(name: str) -> str:
    return "OPENAI_API_KEY, or api_key_env" if name == "openai" else "api_key_env"
