"""One call to a model under a deadline: the only place that imports openai or aiohttp."""

from headrace.llm.client import Llm, Target, key_id_of
from headrace.llm.errors import classify_exception, classify_reply
from headrace.llm.transport import Call, Reply, Transport

__all__ = ["Call", "Llm", "Reply", "Target", "Transport", "classify_exception", "classify_reply", "key_id_of"]
