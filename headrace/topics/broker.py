"""The broker's topics: reading them, and bringing them to what `topics.yaml` wants.

What is wanted is `file`'s work, what differs `drift`'s, what a worker needs of them `facts`'. No call here waits for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from headrace.client_config import base_config
from headrace.config import Settings
from headrace.errors import ConfigError, KafkaUnavailable
from headrace.topics import file as topicfile
from headrace.topics.drift import Change, Cluster, diff, fit
from headrace.topics.file import Role, Shape

TIMEOUT_S = 5.0
SEEN_POLL_S = 0.05
DOWN_REPORTS = 2  # the client says it at once and again every 2 s: a broker that is just restarting gets those
MISSING_REMEDY = "run `headrace topics apply --execute`"
_LOOK_S = 0.05
_T = TypeVar("_T")
_quiet = logging.getLogger("headrace.kafka.topics")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a change: `error` is None where it was carried out."""

    change: Change
    error: str | None


class Topics:
    """The topics of one cluster. Raises KafkaUnavailable within `timeout_s` a call."""

    def __init__(self, settings: Settings, *, timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._timeout_s = timeout_s
        self._client: AdminClient | None = None
        self._last_error: str | None = None
        self._down_reports = 0

    def cluster(self, names: Iterable[str]) -> Cluster:
        """The brokers that are up, and those of these topics that exist."""
        described = self._result(self._admin().describe_cluster(request_timeout=self._timeout_s), "the list of brokers")
        return Cluster(len(described.nodes), self.shapes(names))

    def shapes(self, names: Iterable[str]) -> dict[str, Shape]:
        """Those of these topics that exist, with every configuration value that applies to them."""
        wanted = list(dict.fromkeys(names))
        found: dict[str, Shape] = {}
        for name, future in self._admin().describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s).items():
            described = self._existing(future, f"topic {name}")
            if described is not None:
                replication = min((len(p.replicas) for p in described.partitions), default=1)
                found[name] = Shape(name, len(described.partitions), replication)
        return self._with_configs(found)

    def existing(self, names: Iterable[str]) -> dict[str, Shape]:
        """These topics. Raises ConfigError, one line with the remedy, where one does not exist."""
        wanted = list(dict.fromkeys(names))
        found = self.shapes(wanted)
        if missing := [name for name in wanted if name not in found]:
            raise ConfigError([missing_line(missing, self._kafka.bootstrap)])
        return found

    def apply(self, changes: Iterable[Change], wanted: Mapping[Role, Shape]) -> list[Applied]:
        """Carries out the changes that are not refused, and says what became of each."""
        shapes = {shape.name: shape for shape in wanted.values()}
        todo = [change for change in changes if change.kind != "refused"]
        applied = [Applied(c, self._create(shapes[c.topic])) for c in todo if c.kind == "create"]
        applied += [Applied(c, self._grow(c.topic, int(c.after))) for c in todo if c.kind == "partitions"]
        by_topic: dict[str, list[Change]] = {}
        for change in todo:
            if change.kind == "config":
                by_topic.setdefault(change.topic, []).append(change)
        for topic, settings in by_topic.items():
            error = self._configure(topic, settings)
            applied += [Applied(change, error) for change in settings]
        self._until_seen(
            {a.change.topic: a.change for a in applied if a.error is None and a.change.kind in {"create", "partitions"}}, shapes
        )
        return applied

    def _until_seen(self, changes: Mapping[str, Change], shapes: Mapping[str, Shape]) -> None:
        """Wait until the broker tells of what it has made: a worker that starts right behind would find topics missing."""
        expected = {name: int(c.after) if c.kind == "partitions" else shapes[name].partitions for name, c in changes.items()}
        until = time.monotonic() + self._timeout_s
        while expected and time.monotonic() < until:
            found = self.shapes(expected)
            if all(name in found and found[name].partitions >= partitions for name, partitions in expected.items()):
                return
            time.sleep(SEEN_POLL_S)

    def _with_configs(self, found: dict[str, Shape]) -> dict[str, Shape]:
        if not found:
            return found
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in found]
        for resource, future in self._admin().describe_configs(resources, request_timeout=self._timeout_s).items():
            entries = self._existing(future, f"the configuration of topic {resource.name}")
            if entries is None:
                del found[resource.name]
                continue
            config = {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}
            found[resource.name] = replace(found[resource.name], config=config)
        return found

    def _create(self, shape: Shape) -> str | None:
        topic = NewTopic(shape.name, num_partitions=shape.partitions, replication_factor=shape.replication, config=dict(shape.config))
        futures = self._admin().create_topics([topic], operation_timeout=self._timeout_s, request_timeout=self._timeout_s)
        return self._done(futures[shape.name], or_exists=True)

    def _grow(self, name: str, partitions: int) -> str | None:
        futures = self._admin().create_partitions(
            [NewPartitions(name, partitions)], operation_timeout=self._timeout_s, request_timeout=self._timeout_s
        )
        return self._done(futures[name])

    def _configure(self, name: str, changes: list[Change]) -> str | None:
        entries = [ConfigEntry(c.field, c.after, incremental_operation=AlterConfigOpType.SET) for c in changes]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        futures = self._admin().incremental_alter_configs([resource], request_timeout=self._timeout_s)
        return self._done(next(iter(futures.values())))

    def _done(self, future: Future[Any], *, or_exists: bool = False) -> str | None:
        """None when the broker did it, else what the broker said."""
        try:
            future.result(self._timeout_s + 2)
        except KafkaException as error:
            code: KafkaError = error.args[0]
            return None if or_exists and code.code() == KafkaError.TOPIC_ALREADY_EXISTS else code.str()
        except TimeoutError:
            return f"no answer within {self._timeout_s:g} s"
        return None

    def _existing(self, future: Future[_T], what: str) -> _T | None:
        try:
            return self._result(future, what)
        except _Missing:
            return None

    def _result(self, future: Future[_T], what: str) -> _T:
        try:
            return self._awaited(future)
        except KafkaException as error:
            code: KafkaError = error.args[0]
            if code.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _Missing(what) from None
            raise self._kafka.unavailable(f"{what}: {self._reason() or code.str()}") from None
        except TimeoutError:
            raise self._kafka.unavailable(f"{what}: {self._reason() or 'no answer in time'}") from None

    def _awaited(self, future: Future[_T]) -> _T:
        """The future's result. Raises TimeoutError, and early where the client has reported twice that all brokers are down."""
        until = time.monotonic() + self._timeout_s + 2
        while not future.done() and time.monotonic() < until and self._down_reports < DOWN_REPORTS:
            self._admin().poll(0)
            wait((future,), _LOOK_S)
        return future.result(0)

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = admin_client(self._settings, self._remember)
        return self._client

    def _reason(self) -> str | None:
        """What the connection suffers from, which says more than a time-out; the client tells it only when polled."""
        self._admin().poll(0)
        return self._last_error

    def _remember(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  a documented name
            self._down_reports += 1
            return
        self._last_error = error.str()
        if error.code() == KafkaError._AUTHENTICATION or "certificate" in self._last_error:
            self._down_reports = DOWN_REPORTS  # no broker that is just restarting says that


class _Missing(KafkaUnavailable):
    """The topic does not exist: for the caller an answer, not a fault."""


def admin_client(settings: Settings, on_error: Callable[[KafkaError], None]) -> AdminClient:
    """An admin client that gives its connection errors to `on_error`, where librdkafka would write them to stderr."""
    try:
        return AdminClient(base_config(settings, "topics") | {"error_cb": on_error, "logger": _quiet})
    except KafkaException as error:
        raise settings.kafka.unavailable(f"the client refuses its configuration ({error.args[0].str()})") from None


def missing_line(names: Iterable[str], bootstrap: str) -> str:
    """What every command says of topics that are not there: one line, with the remedy."""
    return f"no topic {', '.join(names)} at {bootstrap}; {MISSING_REMEDY}"


def wanted(settings: Settings) -> dict[Role, Shape]:
    """The topics the file wants, under the settings' names. Raises ConfigError."""
    return topicfile.load(settings.topics_file, settings.topics)


def compare(settings: Settings, topics: Topics, *, replicas: int | None = None) -> tuple[list[Change], dict[Role, Shape], Cluster]:
    """The differences between the cluster and the file, what is wanted after fitting it to the cluster, and the cluster."""
    file = wanted(settings)
    cluster = topics.cluster(shape.name for shape in file.values())
    fitted = fit(file, cluster.brokers, replicas)
    return diff(cluster, fitted), fitted, cluster
