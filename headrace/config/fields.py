"""Every field of the configuration, by its path: what the reference shows and the environment can set is read from here."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

EACH = "[]"  # stands in a path for the position in a list
CLASS, NAME = "<class>", "<name>"  # and for the key of a mapping: an error class, or a name of the user's


@dataclass(frozen=True, slots=True)
class ConfigField:
    """A field that holds a value, a list or a mapping. `annotation` is its type without `None`; `secret` says that a secret is in it."""

    path: tuple[str, ...]
    info: FieldInfo
    annotation: Any
    secret: bool

    @property
    def name(self) -> str:
        """The path as one writes it: `policy.<class>.calls`."""
        return ".".join(self.path).replace(f".{EACH}", EACH)

    @property
    def container(self) -> type[dict[str, Any] | list[Any]] | None:
        """`dict` or `list` where the value is one."""
        origin = typing.get_origin(self.annotation)
        return dict if origin is dict else list if origin in {tuple, list} else None


def fields_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[ConfigField]:
    """The fields of a model and of those inside it, in their order. A section is no field of its own; a list or mapping of models is."""
    for name, info in model.model_fields.items():
        here = (*path, name)
        annotation = _bare(info.annotation)
        marks, inner = _inside(annotation)
        if marks or inner is None:
            yield ConfigField(here, info, annotation, _secret(annotation))
        if inner is not None:
            yield from fields_of(inner, here + marks)


def _bare(annotation: Any) -> Any:
    """Without `Annotated` and without `None`."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        others = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        return _bare(others[0]) if len(others) == 1 else annotation
    return annotation


def _inside(annotation: Any) -> tuple[tuple[str, ...], type[BaseModel] | None]:
    """The marks that lead to the model inside lists and mappings, and that model."""
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (), annotation
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {tuple, list}:
        marks, inner = _inside(args[0])
        return (EACH, *marks), inner
    if origin is dict:
        marks, inner = _inside(args[1])
        key = _bare(args[0])
        return (CLASS if isinstance(key, enum.EnumMeta) else NAME, *marks), inner
    return (), None


def _secret(annotation: Any) -> bool:
    """Whether a secret may stand in a value of this type."""
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return any(_secret(info.annotation) for info in annotation.model_fields.values())
    return annotation is SecretStr or any(_secret(arg) for arg in typing.get_args(annotation) if arg is not ...)
