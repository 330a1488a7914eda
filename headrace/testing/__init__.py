"""For the tests of handlers: a pipeline in memory with the real rules, a scripted model, a clock that jumps, crashes where you want them.

Works in plain pytest, without Kafka, Redis or a model, in milliseconds.
"""

from headrace.testing.model import Asked, FakeModel
from headrace.testing.pipeline import FakePipeline
from headrace.testing.replies import Said, answer, cut, failure, hang, no_http, tool_calls, vectors

__all__ = ["Asked", "FakeModel", "FakePipeline", "Said", "answer", "cut", "failure", "hang", "no_http", "tool_calls", "vectors"]
