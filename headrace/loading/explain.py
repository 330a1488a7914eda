"""Faults of single fields in an operator's words: what a model's error means."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

from headrace.config import Settings
from headrace.document import FieldPath, nearest
from headrace.errors import ErrorClass

_PLAIN = {
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "invalid_key": "is no field: names are text",
}


def explain(error: dict[str, Any], place: str) -> str:
    """One line for an error of the model. The value never appears: it may be a secret."""
    at = tuple(part for part in error["loc"] if part != "[key]")
    name = ".".join(map(str, at))
    if error["type"] == "extra_forbidden":
        known = _fields_at(at[:-1])
        hint = nearest(str(at[-1]), known) or "; known: " + ", ".join(known)
        return f"{place}: {name}: unknown field{hint}"
    if at[0] == "policy" and error["type"] == "enum":
        return f"{place}: {name}: no such error class{nearest(str(at[-1]), map(str, ErrorClass))}"
    text = _PLAIN.get(error["type"]) or error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{place}: {name}: {text[:1].lower()}{text[1:]}"


def _fields_at(path: FieldPath) -> list[str]:
    """The field names a mapping at this path may have."""
    model: Any = Settings
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = model.model_fields[str(part)].annotation
        else:
            model = next((arg for arg in typing.get_args(model) if isinstance(arg, type) and issubclass(arg, BaseModel)), None)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return []
