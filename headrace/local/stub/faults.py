"""A model's refusal as lines that name the field; never the value, which may be anything."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

from headrace.document import nearest
from headrace.local.stub.rule import DELIVERIES, Action, Latency, Match, Rule

_MODELS: Mapping[str, type[BaseModel]] = {"match": Match, "action": Action, "latency": Latency}


def field_faults(error: ValidationError, *root: str) -> list[str]:
    """One `field.path: what is wrong` for each fault, below `root`."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [
        f"{'.'.join([*root, *map(str, fault['loc'])]) or 'document'}: {_text(fault['type'], fault['loc'], fault['msg'])}" for fault in found
    ]


def _text(kind: str, at: tuple[int | str, ...], message: str) -> str:
    if kind == "extra_forbidden":
        known = _fields(at[:-1])
        return "unknown field" + (nearest(str(at[-1])[:64], known) or (f"; known: {', '.join(known)}" if known else ""))
    if kind == "missing":
        return "is missing"
    if kind == "literal_error" and at[-1:] == ("delivery",):
        return f"no such delivery; there are {', '.join(DELIVERIES)}"
    return message.removeprefix("Value error, ").removeprefix("Input ")


def _fields(parents: tuple[int | str, ...]) -> list[str]:
    """The fields of the model that stands there: below a number of the list it is a rule."""
    last = parents[-1] if parents else None
    model = Rule if isinstance(last, int) else _MODELS.get(str(last))
    return list(model.model_fields) if model is not None else []
