"""Which order is about whom: an index over all that stand, asked once for every call while there are any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.controls.entry import Entry
from headrace.envelope import Position

_Names = tuple[str | None, ...]


class Rules:
    """The narrowest order answers first. What has run out is passed over."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self._targets: dict[_Names, Entry] = {}
        self._requests: dict[_Names, Entry] = {}
        self._cancels: dict[_Names, Entry] = {}
        self._ids: dict[str, Entry] = {}
        for entry in self.entries.values():
            self._place(entry)

    def _place(self, entry: Entry) -> None:
        scope = entry.scope
        if entry.kind == "ids":
            self._ids[entry.name] = entry
        elif entry.kind == "cancel":
            self._cancels[scope.agent, scope.channel, scope.model] = entry
        elif scope.of_requests:
            self._requests[scope.request_id, scope.agent, scope.channel] = entry
        else:
            self._targets[scope.provider, scope.model] = entry

    def active(self, now_ms: int) -> bool:
        """Whether any of them stands."""
        return any(entry.stands(now_ms) for entry in self.entries.values())

    def target(self, provider: str, model: str | None, now_ms: int) -> Entry | None:
        """What pauses this model of a provider; without a model, the provider as a whole."""
        return self._standing(self._targets, _narrowing((provider, model)), now_ms) if self._targets else None

    def request(self, request_id: str, agent: str, channel: str, now_ms: int) -> Entry | None:
        """What pauses a request for what it is."""
        if not self._requests:
            return None
        return self._standing(self._requests, ((request_id, None, None), *(_requests(agent, channel))), now_ms)

    def cancel(self, agent: str, channel: str, model: str, origin: Position, now_ms: int) -> Entry | None:
        """What cancels a request that began at `origin`."""
        for names in _narrowing((agent, channel, model)) if self._cancels else ():
            entry = self._cancels.get(names)
            if entry is not None and entry.stands(now_ms) and entry.meant(origin):
                return entry
        return None

    def ids(self, name: str) -> Entry | None:
        """The command that cancelled ids under this name."""
        return self._ids.get(name)

    def any_ids(self, now_ms: int) -> bool:
        """Whether ids are cancelled at all, so that it must be asked which."""
        return any(entry.left and entry.stands(now_ms) for entry in self._ids.values()) if self._ids else False

    @staticmethod
    def _standing(index: dict[_Names, Entry], wanted: Iterable[_Names], now_ms: int) -> Entry | None:
        return next((entry for names in wanted if (entry := index.get(names)) is not None and entry.stands(now_ms)), None)


def _requests(agent: str, channel: str) -> Iterator[_Names]:
    return ((None, *names) for names in _narrowing((agent, channel)))


def _narrowing(names: _Names) -> Iterator[_Names]:
    """The names with every subset of them left out, the whole first, none last."""
    for mask in range(1 << len(names)):
        yield tuple(None if mask >> place & 1 else name for place, name in enumerate(names))
