"""What is kept in Redis: claims, pauses, replay ids. `Store` is the real one, `memory.MemoryStore` the fake; both pass one contract test."""

from headrace.store.store import ClaimStore, Store

__all__ = ["ClaimStore", "Store"]
