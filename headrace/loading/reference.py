"""The reference of the configuration, in Markdown: made of the model and of the variables, and of nothing else."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from headrace.config import DEFAULT_POLICIES, ClassPolicy, Settings
from headrace.config.fields import CLASS, ConfigField, fields_of
from headrace.loading.variables import OTHERS, of_field, secrets

HEAD = """# Configuration

<!-- Made by `headrace config reference`; a test holds it to the code. -->

The environment beats `headrace.yaml`, which beats the default. The file is the one HEADRACE_CONFIG names, else `headrace.yaml` in the
working directory, if there is one; paths in it are relative to its folder. Every fault in either is told at once, by field, with the line or
variable and the remedy, before anything starts: `headrace config check`. What is in force, and where each value came from, is shown by
`headrace config show`, without the secrets; `headrace config example` prints a file to begin with.

Every field has a regular variable: HEADRACE_, its path in capitals, `__` between the parts. The best known have a short name too; of the two
only one may be set. A variable that is empty counts as not set. Lists and mappings are JSON in the environment; a mapping is merged with the
file's by name, a list replaces it. An unknown variable that begins with HEADRACE_ is a fault, since it is most likely a misspelt one; what
Kubernetes sets for services is left alone, and so is HEADRACE_TEST_*.
"""
_TAIL = """
## Beside the model

| variable | meaning |
|---|---|
"""
_SECRETS = """
A secret may stand in a file instead: {names} are read from the file that NAME_FILE names. One of the two, never both. A provider's key
comes from `api_key_env` or `api_key_file`; OPENAI_API_KEY and OPENAI_BASE_URL are for the provider named `openai` alone, which is also the
one there is where none is listed. A secret property of `kafka.config` comes from `kafka.secret_files`.
"""
_BOUNDS: tuple[tuple[type, str, str], ...] = (
    (annotated_types.Ge, "ge", "≥ {}"),
    (annotated_types.Gt, "gt", "> {}"),
    (annotated_types.Le, "le", "≤ {}"),
    (annotated_types.Lt, "lt", "< {}"),
    (annotated_types.MinLen, "min_length", "at least {} long"),
    (annotated_types.MaxLen, "max_length", "at most {} long"),
)
_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", SecretStr: "secret"}


def reference() -> str:
    """The page."""
    return HEAD + "".join(_pages()) + _TAIL + "".join(_others())


def _pages() -> Iterator[str]:
    section = None
    for field in fields_of(Settings):
        top = field.path[0]
        info = Settings.model_fields[top]
        own = top if len(field.path) > 1 or field.container else ""
        if own != section:
            section = own
            yield f"\n## {own or 'At the top'}\n\n" + (f"{info.description}\n\n" if own else "")
            yield "| field | type | default | meaning |\n|---|---|---|---|\n"
        yield _row(field)
        if field.path == ("policy", CLASS, list(ClassPolicy.model_fields)[-1]):
            yield _policies()


def _row(field: ConfigField) -> str:
    names = ", ".join(f"`{name}`" for name in of_field(field))
    meaning = f"{field.info.description or ''}{f'<br>{names}' if names else ''}"
    return f"| `{field.name}` | {cell(kind(field))} | {cell(_default(field.info))} | {cell(meaning)} |\n"


def kind(field: ConfigField) -> str:
    """The type and its bounds, in words."""
    annotation = field.annotation
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if field.container is dict:
        word = "mapping"
    elif field.container is list:
        word = "list"
    else:
        word = _WORDS.get(annotation, str(getattr(annotation, "__name__", annotation)))
    return ", ".join([word, *_bounds(field)])


def _bounds(field: ConfigField) -> Iterator[str]:
    for mark in field.info.metadata:
        for kind_of, attribute, text in _BOUNDS:
            if isinstance(mark, kind_of):
                yield text.format(f"{getattr(mark, attribute):,}")
        if (pattern := getattr(mark, "pattern", None)) is not None:
            yield f"`{pattern}`"


def _default(info: Any) -> str:
    value = info.default
    if info.default_factory is not None or value is None or isinstance(value, BaseModel | tuple):
        return ""
    if value is PydanticUndefined:
        return "required"
    shown = value.get_secret_value() if isinstance(value, SecretStr) else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _policies() -> str:
    names = list(ClassPolicy.model_fields)
    rows = (
        "".join(f" {getattr(policy, name)} |" if getattr(policy, name) is not None else " – |" for name in names)
        for policy in DEFAULT_POLICIES.values()
    )
    head = f"\nBy class, where nothing is set:\n\n| class | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    return head + "".join(f"| `{error_class}` |{row}\n" for error_class, row in zip(DEFAULT_POLICIES, rows, strict=True))


def _others() -> Iterator[str]:
    yield from (f"| `{name}` | {cell(text)} |\n" for name, text in OTHERS.items())
    yield _SECRETS.format(names=", ".join(f"`{name}`" for name in sorted(secrets())))


def cell(text: str) -> str:
    """Text that fits into one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
