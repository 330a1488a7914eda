"""What happens, told once: an event has a name and fields, and every hook hears it. One small file per backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

Hook = Callable[[str, Mapping[str, Any]], None]
Tell = Callable[[str, Mapping[str, Any]], None]


def silent(name: str, fields: Mapping[str, Any]) -> None:
    """Tells nobody."""


def tell_all(*hooks: Hook) -> Tell:
    """One `tell` for several hooks; a hook that raises is told to the others by name, and harms nobody."""

    def tell(name: str, fields: Mapping[str, Any]) -> None:
        for hook in hooks:
            try:
                hook(name, fields)
            except Exception as error:  # noqa: BLE001  a backend's fault must not stop a lane; it is told instead
                _report(hooks, hook, error)

    return tell


def _report(hooks: tuple[Hook, ...], failed: Hook, error: Exception) -> None:
    for hook in hooks:
        if hook is not failed:
            with contextlib.suppress(Exception):  # two broken hooks must not stop a lane either; there is nobody left to tell
                hook("hook_failed", {"hook": getattr(failed, "__qualname__", type(failed).__name__), "error": type(error).__name__})
