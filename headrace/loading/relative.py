"""Paths in `headrace.yaml` are relative to its folder, wherever the process was started."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace.config import Settings
from headrace.config.fields import EACH, NAME, fields_of


@cache
def sections() -> tuple[str, ...]:
    """The fields of the file that hold fields of their own."""
    return tuple(
        name
        for name, info in Settings.model_fields.items()
        if name != "topics" and isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    )


@cache
def _paths() -> tuple[tuple[str, ...], ...]:
    """The fields that hold a path; below a mapping of paths, its every value."""
    found = [(field.path, field.annotation) for field in fields_of(Settings)]
    return tuple(
        (*path, NAME) if annotation == dict[str, Path] else path for path, annotation in found if annotation in {Path, dict[str, Path]}
    )


def absolute(data: Any, folder: Path) -> None:
    """Rewrites every relative path in the data, in place."""
    for path in _paths():
        _rewrite(data, path, folder)


def _rewrite(data: Any, path: tuple[str, ...], folder: Path) -> None:
    first, rest = path[0], path[1:]
    if first == EACH:
        for item in data if isinstance(data, list) else ():
            _rewrite(item, rest, folder)
        return
    keys: Iterable[Any] = () if not isinstance(data, dict) else list(data) if first == NAME else (first,)
    for key in keys:
        value = data.get(key)
        if rest:
            _rewrite(value, rest, folder)
        elif isinstance(value, str):
            data[key] = str(folder / value)
