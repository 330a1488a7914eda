"""The topics: `topics.yaml` (`file`), what the broker has and can be made to have (`broker`), and the difference (`drift`)."""

from headrace.topics.broker import Applied, TopicFacts, Topics, check, compare, wanted

__all__ = ["Applied", "TopicFacts", "Topics", "check", "compare", "wanted"]
