"""What became of every request id: counts in columns, a row each at the end."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

from headrace.audit.verdict import Row

PLACES = ("main", "retry", "later", "moving")
_STATUSES = ("completed", "degraded", "failed", "duplicate")
_SHOWN = ("sources", *_STATUSES, "letters")
_COUNTS = (*_SHOWN, "unsettled", "lost", "calls", *PLACES)


class Ids:
    """An index for each id, in the order they were met. `counts` are by name and index."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._names: list[str] = []
        self.counts: dict[str, array[int]] = {name: array("I") for name in _COUNTS}
        self._columns = tuple(self.counts.values())
        self.spent = array("q")

    def __len__(self) -> int:
        return len(self._names)

    def index(self, request_id: str) -> int:
        """The id's index; a new one where it was never met."""
        if (found := self._index.get(request_id)) is None:
            found = self._index[request_id] = len(self._names)
            self._names.append(request_id)
            self.spent.append(0)
            for column in self._columns:
                column.append(0)
        return found

    def find(self, request_id: str) -> int | None:
        """The id's index, if it was met."""
        return self._index.get(request_id)

    def name(self, index: int) -> str:
        """The id at that index."""
        return self._names[index]

    def add(self, name: str, index: int, count: int = 1) -> None:
        """Count something of an id."""
        self.counts[name][index] += count

    def state(self, index: int) -> str:
        """Where an id stands: what is completed stays so; what is on its way may still change all else."""
        counts = self.counts
        if counts["completed"][index]:
            return "completed"
        if any(counts[place][index] for place in PLACES):
            return "open"
        for state in ("lost", "degraded", "failed", "duplicate"):
            if counts[state][index]:
                return state
        return "gone"

    def states(self) -> Counter[str]:
        """How many ids stand where."""
        return Counter(map(self.state, range(len(self))))

    def rows(self, *, with_calls: bool) -> Iterator[Row]:
        """A row for each id, in the order they were met."""
        counts = self.counts
        for index, name in enumerate(self._names):
            open_at = {place: counts[place][index] for place in PLACES if counts[place][index]}
            sources, completed, degraded, failed, duplicates, letters = (counts[column][index] for column in _SHOWN)
            calls = counts["calls"][index] if with_calls else None
            yield Row(name, self.state(index), open_at, sources, completed, degraded, failed, duplicates, letters, calls)
