"""When a request that met a pause comes back to look again: soon after a short pause, and never all of a backlog at once."""

from __future__ import annotations

LOOK_FIRST_MS, LOOK_MOST_MS = 5_000, 60_000
SHARE = 4  # a pause is looked at again after a quarter of the time it has lasted
PER_S = 250  # looks a second and order in one process: a backlog that only waits must not take the turns of those that can go on


def look_ms(since_ms: int, until_ms: int | None, now_ms: int) -> int:
    """When a pause is looked at again, by the time it has lasted; at its end at the latest."""
    at_ms = now_ms + min(max((now_ms - since_ms) // SHARE, LOOK_FIRST_MS), LOOK_MOST_MS)
    return at_ms if until_ms is None else min(at_ms, max(until_ms, now_ms))


class Pace:
    """By order: when the next of its requests looks again. A resume is seen by each within a minute, or as fast as `PER_S` lets them."""

    def __init__(self) -> None:
        self._next_ms: dict[str, float] = {}

    def due_ms(self, key: str, since_ms: int, until_ms: int | None, now_ms: int) -> int:
        """A place of its own for everyone who asks, at most at the pause's end."""
        at_ms = self.spaced(key, look_ms(since_ms, until_ms, now_ms))
        return at_ms if until_ms is None else min(at_ms, max(until_ms, now_ms))

    def spaced(self, key: str, at_ms: int) -> int:
        """The next free place from then on."""
        place_ms = max(at_ms, self._next_ms.get(key, 0.0))
        self._next_ms[key] = place_ms + 1000 / PER_S
        return int(place_ms)

    def keep(self, keys: set[str]) -> None:
        """Forget the others."""
        self._next_ms = {key: at_ms for key, at_ms in self._next_ms.items() if key in keys}
