"""A YAML document with the line of every field, so that a fault can name the place. What the fields mean is left to its readers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from headrace.errors import ConfigError

FieldPath = tuple[str | int, ...]
_QUOTED = re.compile(r"'(?!<[a-z ]+>')[^']{2,}'")  # what PyYAML quotes from the text may be part of a secret; its own words stand in <>


@dataclass(frozen=True, slots=True)
class Document:
    """`data` is the top-level mapping; `lines` gives the line (from 1) of each path in it; `path` is its file, where it has one."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[FieldPath, int] = field(default_factory=dict)
    path: Path | None = None

    def place(self, path: FieldPath) -> str:
        """`name line n` of the path, or of its nearest parent that stands in the document."""
        for end in range(len(path), 0, -1):
            if (line := self.lines.get(path[:end])) is not None:
                return f"{self.name} line {line}"
        return self.name


def read(path: Path) -> Document:
    """The document in the file. Raises ConfigError for a file that cannot be read or is not one YAML mapping."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file; create it, or correct the path"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}); check its owner and mode"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8"]) from None
    return replace(parse(text, path.name), path=path)


def parse(text: str, name: str) -> Document:
    """The document in `text`; `name` stands for it in messages. Raises ConfigError with every duplicate key, or the first syntax fault."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(name)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError([f"{name} line 1: is not a mapping; write fields as `name: value`"])
        walk = _Walk(name)
        walk.visit(node, ())
        if walk.faults:
            raise ConfigError(walk.faults)
        return Document(name, loader.construct_document(node), walk.lines)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax(error, name)]) from None
    except (ValueError, RecursionError):
        raise ConfigError([f"{name}: holds a value YAML cannot read, such as a date that does not exist; quote it"]) from None


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`; did you mean 'x'?` for the closest known word, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {prefix + close[0]!r}?" if close else ""


def _syntax(error: yaml.YAMLError, name: str) -> str:
    """Where and what, without the snippet PyYAML adds: it may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = _QUOTED.sub("'…'", error.problem or error.context or "")
        return f"{name}{where}: is not valid YAML ({problem}); correct the syntax there"
    return f"{name}: is not valid YAML; it holds characters YAML does not allow"


class _Walk:
    """Collects the line of every path, and every key that stands twice in one mapping."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[FieldPath, int] = {}
        self.faults: list[str] = []
        self._open: set[int] = set()
        self._seen: set[int] = set()

    def visit(self, node: yaml.Node, path: FieldPath) -> None:
        if id(node) in self._open:
            raise RecursionError("a node that holds itself")
        if id(node) in self._seen:
            return  # an alias: looked at once, or aliases of aliases would take for ever
        self._seen.add(id(node))
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                self.visit(item, (*path, index))
        self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> None:
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen and name != "<<":
                self.faults.append(
                    f"{self.name} line {line}: {'.'.join(map(str, (*path, name)))} stands twice (first on line {seen[name]}); remove one"
                )
            seen.setdefault(name, line)
            self.lines[(*path, name)] = line
            self.visit(value, (*path, name))
