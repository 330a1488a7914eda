"""Admission by claim: who may handle a request id, who waits for another, who ends here."""

from headrace.guard.guard import Guard

__all__ = ["Guard"]
