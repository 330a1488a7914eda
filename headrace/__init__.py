"""Headrace: LLM inference over Kafka in which every request settles exactly once."""

from headrace.envelope import Request, Response
from headrace.errors import Dead, Delay, HeadraceError, Retry

__version__ = "0.1.0"
__all__ = ["Dead", "Delay", "HeadraceError", "Request", "Response", "Retry", "__version__"]
