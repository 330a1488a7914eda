"""What the settings are merged from, in pydantic-settings' terms: each source gives nested data, and an earlier one beats a later one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from headrace.config import Settings
from headrace.document import FieldPath

logging.getLogger("pydantic_settings").setLevel(logging.INFO)  # its debug lines, which a variable turns on, hold every secret

Given = Callable[[Mapping[str, Any]], dict[str, Any]]


class Source(PydanticBaseSettingsSource):
    """One source: `given` is told what the sources before it hold. Paths in `without` are left out: their faults are known."""

    def __init__(self, given: Given, without: Sequence[FieldPath]) -> None:
        super().__init__(Settings)
        self._given = given
        self._without = without

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        data = self._given(self.current_state)
        for path in self._without:
            data = without(data, path)
        return data


def merged(givens: Sequence[Given], dropped: Sequence[FieldPath]) -> Settings:
    """The settings of these sources, the first of which wins. Raises pydantic.ValidationError."""

    class Read(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, *(Source(given, dropped) for given in givens))

    read = Read()
    return Settings(**{name: getattr(read, name) for name in read.model_fields_set})


def without(data: Any, path: FieldPath) -> Any:
    """A copy of the data in which nothing stands at this path, so that its default applies."""
    first, rest = path[0], path[1:]
    if isinstance(data, dict) and first in data:
        if not rest:
            return {name: value for name, value in data.items() if name != first}
        return {**data, first: without(data[first], rest)}
    if isinstance(data, list | tuple) and isinstance(first, int) and first < len(data):
        return [(without(item, rest) if rest else {}) if at == first else item for at, item in enumerate(data)]
    return data
