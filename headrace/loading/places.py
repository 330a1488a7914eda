"""Where each value of the configuration came from: a variable, a line of the file, or its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.document import Document, FieldPath


@dataclass(frozen=True, slots=True)
class Places:
    """`sources` names the variable that set a path; the document has the lines of the others."""

    sources: Mapping[FieldPath, str]
    document: Document

    def of(self, at: FieldPath) -> str | None:
        """The variable or the line that set exactly this path; None where it is the default."""
        if (name := self.sources.get(at)) is not None:
            return name
        return self.document.place(at) if at in self.document.lines else None

    def near(self, at: FieldPath) -> str:
        """The place of the path or of its nearest parent; the file where nothing set it."""
        for end in range(len(at), 0, -1):
            if (place := self.of(at[:end])) is not None:
                return place
        return self.document.name
