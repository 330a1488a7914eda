"""How every part of the configuration is read: no unknown field, nothing changed afterwards."""

from __future__ import annotations

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", frozen=True)
