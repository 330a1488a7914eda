"""A model's refusal as lines that name the field; never the value, which may be anything."""

from __future__ import annotations

from pydantic import ValidationError


def field_faults(error: ValidationError, *root: str) -> list[str]:
    """One `field.path: what is wrong` for each fault, below `root`."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [f"{'.'.join([*root, *map(str, fault['loc'])]) or 'document'}: {fault['msg'].removeprefix('Value error, ')}" for fault in found]
