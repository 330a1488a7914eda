"""One call to a model under a deadline: the only place that imports openai or aiohttp."""

from headrace.llm.chain import Route, remaining
from headrace.llm.client import Llm, Spot, Target
from headrace.llm.endpoint import EndpointState, key_id_of
from headrace.llm.errors import classify_exception, classify_reply
from headrace.llm.transport import Call, Reply, Transport

__all__ = [
    "Call", "EndpointState", "Llm", "Reply", "Route", "Spot", "Target", "Transport", "classify_exception", "classify_reply", "key_id_of",
    "remaining",
]  # fmt: skip
