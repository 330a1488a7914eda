"""librdkafka settings every client of ours shares: where the broker is, security, names, logging. Plain dictionaries."""

from __future__ import annotations

import logging
from typing import Any

from headrace.config import Settings
from headrace.oauth import token_source

_LOGGER = logging.getLogger("headrace.kafka")
_UNSUPPORTED_FEATURE, _FATAL = -165, -150  # RD_KAFKA_RESP_ERR__…
# A consumer's fatal error hides its code; these are librdkafka's words for UNSUPPORTED_VERSION (a broker told to have
# classic groups only) and _UNSUPPORTED_FEATURE (one too old to know others).
_NOT_THERE = ("API version not supported", "Required feature not supported by broker")


def base_config(settings: Settings, role: str) -> dict[str, Any]:
    """Bootstrap, what the user merges in, and a client id of namespace and role."""
    return {
        "bootstrap.servers": settings.kafka.bootstrap,
        "client.id": f"{settings.namespace}.{role}",
        "logger": _LOGGER,
        "log.connection.close": False,
        "reconnect.backoff.max.ms": 2_000,
        "topic.metadata.refresh.interval.ms": 30_000,
        **settings.kafka.config,
        **({"oauth_cb": token_source(settings.kafka.oauth_token)} if settings.kafka.oauth_token else {}),
    }


def unpolled(config: dict[str, Any]) -> dict[str, Any]:
    """For a client nobody polls: log lines kept for a poll that never comes would pile up, so only critical ones are written, to stderr."""
    return {name: value for name, value in config.items() if name != "logger"} | {"log_level": 2}


def protocol_of(settings: Settings) -> str:
    """The group protocol to begin with: `auto` tries KIP-848 first."""
    return "consumer" if settings.kafka.group_protocol == "auto" else settings.kafka.group_protocol


def falls_back(settings: Settings, protocol: str, code: int, text: str) -> bool:
    """Whether this error says that the broker has classic groups only, and we are free to use one."""
    missing = code == _UNSUPPORTED_FEATURE or (code == _FATAL and any(words in text for words in _NOT_THERE))
    return missing and protocol == "consumer" and settings.kafka.group_protocol == "auto"


def consumer_config(settings: Settings, role: str, group: str, *, protocol: str, queue_kbytes: int) -> dict[str, Any]:
    """A lane's consumer. `protocol` is `consumer` (KIP-848) or `classic` (then cooperative-sticky)."""
    config = base_config(settings, role) | {
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": queue_kbytes,
        "max.poll.interval.ms": settings.kafka.max_poll_interval_ms,
    }
    if protocol == "classic":
        config |= {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 3_000}
    return config


def idempotent_config(settings: Settings, role: str, *, linger_ms: int, timeout_s: float) -> dict[str, Any]:
    """A producer outside of any transaction; `timeout_s` is how long the broker may take for a record, its outages included."""
    return base_config(settings, role) | {
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "compression.type": "lz4",
        "linger.ms": linger_ms,
        "message.max.bytes": 1_000_000_000,
        "delivery.timeout.ms": int(timeout_s * 1000),
        "retry.backoff.ms": 10,
        "metadata.recovery.strategy": "none",
    }


def producer_config(settings: Settings, role: str, transactional_id: str, *, batch_bytes: int) -> dict[str, Any]:
    """A transactional producer. `batch_bytes` is the smallest limit of the topics it writes: the broker refuses whole batches.

    Without `retry.backoff.ms` 10 every transaction waits 100 ms for its predecessor (CONCURRENT_TRANSACTIONS). With
    the default `metadata.recovery.strategy` an outage of a second makes librdkafka 2.16 forget its brokers, but not the
    coordinator's old handle: the transaction then hangs until its time-outs have passed.
    """
    return base_config(settings, role) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": settings.kafka.transaction_timeout_ms,
        "retry.backoff.ms": 10,
        "metadata.recovery.strategy": "none",
        "linger.ms": 2,
        "batch.num.messages": 10_000,
        "batch.size": max(16_384, batch_bytes - 2_048),
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.kbytes": 1 << 20,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        "delivery.report.only.error": True,
        "topic.metadata.propagation.max.ms": 3_000,
    }
