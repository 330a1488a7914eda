"""A number and its noun, for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 line`, `1,200 lines`: for nouns that take an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
