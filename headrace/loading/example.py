"""A `headrace.yaml` to begin with: every field that may be set, commented out, with its default and meaning."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from headrace.config import Settings
from headrace.config.fields import EACH, ConfigField, fields_of

HEAD = """# headrace.yaml: what is left out has its default, shown here. `headrace config reference` has types, bounds and variables.
# Try it: headrace config check
"""
_USUAL = """
providers:
  - name: openai
    base_url: https://api.openai.com/v1
    api_key_env: OPENAI_API_KEY  # or api_key_file: a path
    default_model: gpt-4o-mini
"""


def example() -> str:
    """The file."""
    lines: list[str] = [HEAD, _USUAL]
    section = ""
    for field in fields_of(Settings):
        if (
            field.path[0] in {"topics", "models", "policy"}
            or len(field.path) > 2
            or (field.path[0] == "providers" and EACH not in field.path)
        ):
            continue
        if len(field.path) == 2 and field.path[0] != section:
            section = field.path[0]
            lines.append(f"\n# {section}:\n")
        lines.append(_line(field, indent=2 if len(field.path) == 2 else 0))
    lines.append(
        '\n# policy:\n#   timeout: {calls: 3}  # by error class\n# models:\n#   "*": [openai]  # the chain of providers, by model\n'
    )
    return "".join(line for line in lines)


def _line(field: ConfigField, *, indent: int) -> str:
    if field.path == ("providers",):
        return ""
    value = _plain(field.info.get_default(call_default_factory=True))
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    return f"# {' ' * indent}{field.path[-1]}: {text}  # {field.info.description}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value
