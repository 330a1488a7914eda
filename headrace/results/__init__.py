"""`llm_results` as those read it who wait for an answer: followed from an offset on, and looked back into by time. No consumer group."""

from headrace.results.follower import Follower
from headrace.results.lookback import LookBack
from headrace.results.result import Result
from headrace.results.told import Asked, Told, meaning

__all__ = ["Asked", "Follower", "LookBack", "Result", "Told", "meaning"]
