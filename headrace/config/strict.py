"""How every part of the configuration is read: no unknown field, nothing changed afterwards."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic_settings import SettingsConfigDict

STRICT = ConfigDict(extra="forbid", frozen=True)
STRICT_SETTINGS = SettingsConfigDict(extra="forbid", frozen=True)
