"""How every part of the configuration is read: no unknown field, nothing changed afterwards."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic_settings import SettingsConfigDict

# A bound on text is what makes the model refuse text that is no Unicode, too: a byte of the environment that is no UTF-8.
_TEXT = 1 << 16
STRICT = ConfigDict(extra="forbid", frozen=True, str_max_length=_TEXT)
STRICT_SETTINGS = SettingsConfigDict(extra="forbid", frozen=True, str_max_length=_TEXT)
