"""The topics: `topics.yaml` (`file`), what the broker has and can be made to have (`broker`), the difference (`drift`), the judgement (`facts`)."""

from headrace.topics.broker import Applied, Topics, compare, wanted
from headrace.topics.facts import TopicFacts, check

__all__ = ["Applied", "TopicFacts", "Topics", "check", "compare", "wanted"]
