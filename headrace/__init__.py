"""Headrace: LLM inference over Kafka in which every request settles exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.context import Context
from headrace.envelope import Request, Response
from headrace.errors import (
    CallFailed,
    ClientClosed,
    Dead,
    Delay,
    ErrorClass,
    HeadraceError,
    OnceUnknown,
    RequestRefused,
    ResultConflict,
    ResultError,
    ResultFailed,
    ResultGone,
    ResultTimeout,
    Retry,
)

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.results import Result

__version__ = "0.1.0"
__all__ = [
    "AsyncClient", "CallFailed", "Client", "ClientClosed", "Context", "Dead", "Delay", "ErrorClass", "HeadraceError", "OnceUnknown",
    "Request", "RequestRefused", "Response", "Result", "ResultConflict", "ResultError", "ResultFailed", "ResultGone", "ResultTimeout",
    "Retry", "__version__",
]  # fmt: skip

_LATER = {"AsyncClient": "headrace.client", "Client": "headrace.client", "Result": "headrace.results"}


def __getattr__(name: str) -> Any:
    """The clients, once they are asked for: they need Kafka's, which a handler does not."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)
