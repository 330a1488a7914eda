"""What the broker says its user may do, beside what is needed (`rights`). It tells of topics and groups; of transactional ids nobody can ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headrace.topics.broker import Topics
from headrace.topics.rights import PARTS, Right, rights_of

_DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})
_TOLD = ("READ", "DESCRIBE")  # of a group; its configuration is not among what the broker answers


class Permissions(Topics):
    """The rights of the configured user."""

    def missing(self, parts: Iterable[str]) -> list[str]:
        """One line for each right that these parts need and the user has not, with the remedy. Raises KafkaUnavailable."""
        wanted: dict[Right, str] = {}
        for part in parts:
            for right in (one for one in rights_of(part, self._settings) if one.resource != "group" or one.operation in _TOLD):
                wanted.setdefault(right, PARTS[part].what)
        granted = self._granted(list(wanted))
        return [
            f"Kafka at {self._kafka.bootstrap}: the user may not {right}, which {what} needs; grant it: `headrace topics acls` prints how"
            for right, what in wanted.items()
            if granted.get((right.resource, right.name)) is not None and right.operation not in granted[right.resource, right.name]
        ]

    def _granted(self, rights: Sequence[Right]) -> dict[tuple[str, str], frozenset[str]]:
        """By resource what may be done there; a resource that cannot be asked about is left out."""
        topics = list(dict.fromkeys(right.name for right in rights if right.resource == "topic"))
        groups = list(dict.fromkeys(right.name for right in rights if right.resource == "group"))
        asked: list[tuple[str, dict[str, Any]]] = []
        timeout_s = self._timeout_s
        if topics:
            found = self._admin().describe_topics(TopicCollection(topics), include_authorized_operations=True, request_timeout=timeout_s)
            asked.append(("topic", found))
        if groups:
            asked.append(
                ("group", self._admin().describe_consumer_groups(groups, include_authorized_operations=True, request_timeout=timeout_s))
            )
        return dict(self._answers(asked))

    def _answers(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[tuple[str, str], frozenset[str]]]:
        for resource, futures in asked:
            for name, future in futures.items():
                try:
                    operations = self._awaited(future).authorized_operations
                except KafkaException as error:
                    if error.args[0].code() in _DENIED:
                        yield (resource, name), frozenset()
                    continue  # a topic that is not there, or a broker that cannot say: the facts and the first use will tell
                except TimeoutError:
                    raise self._kafka.unavailable(f"{resource} {name}: {self._reason() or 'no answer in time'}") from None
                if operations is not None:
                    yield (resource, name), frozenset(operation.name for operation in operations)
