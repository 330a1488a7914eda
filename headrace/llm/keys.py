"""Keys that are kept in files, watched once a second and looked at when a provider refuses one: what is rotated causes no pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from headrace.instrument import Tell
from headrace.llm.endpoint import Endpoint
from headrace.llm.keyfile import KeyFile, Look

EVERY_S = 1.0


class Keys:
    """Belongs to the event loop; files are read beside it. Whoever asks while a look is under way shares it."""

    def __init__(self, endpoints: Iterable[Endpoint], *, tell: Tell, changed: Callable[[], None]) -> None:
        self._by_path: dict[Path, list[Endpoint]] = {}
        for endpoint in endpoints:
            if endpoint.server.api_key_file is not None:
                self._by_path.setdefault(endpoint.server.api_key_file, []).append(endpoint)
        self._files = [KeyFile(path) for path in self._by_path]
        self._tell = tell
        self._changed = changed
        self._faulty: set[Path] = set()
        self._soon = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        """Whether any key is in a file."""
        return bool(self._files)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            self._soon.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._soon.wait()

    def reread(self) -> None:
        """Read every file, changed or not, soon. For a signal's handler."""
        for file in self._files:
            file.forget()
        self._soon.set()

    async def look(self) -> None:
        """Once: every file that may have changed is read, and its key is the one of the next call."""
        if self._files:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(), name="keys")
            await asyncio.shield(self._looking)

    async def _look(self) -> None:
        try:
            found = await asyncio.to_thread(lambda: [(file.path, file.look()) for file in self._files])
        finally:
            self._looking = None
        changed = [self._take(path, look) for path, look in found]
        if any(changed):
            self._changed()

    def _take(self, path: Path, look: Look) -> bool:
        if look.fault is not None:
            if path not in self._faulty:
                self._faulty.add(path)
                self._tell("key_unreadable", {"file": str(path), "error": look.fault, "note": "the last good key is used"})
            return False
        if look.key is None:
            return False
        self._faulty.discard(path)
        changed = False
        for endpoint in self._by_path[path]:
            before = endpoint.key.key_id
            if endpoint.rekey(look.key):
                changed = True
                about = {"provider": endpoint.provider, "endpoint": endpoint.label}
                self._tell("key_changed", {**about, "before": before, "key_id": endpoint.key.key_id})
        return changed
