"""Headrace: LLM inference over Kafka in which every request settles exactly once."""

from headrace.envelope import Request, Response
from headrace.errors import CallFailed, Dead, Delay, HeadraceError, Retry
from headrace.handler import Context

__version__ = "0.1.0"
__all__ = ["CallFailed", "Context", "Dead", "Delay", "HeadraceError", "Request", "Response", "Retry", "__version__"]
