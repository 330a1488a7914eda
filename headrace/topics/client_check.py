"""What Kafka's client says of `kafka.config` before anything uses it. Nothing here reaches for a broker."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from headrace.client_config import base_config, consumer_config, producer_config, protocol_of
from headrace.config import Settings

_CREATION = re.compile(r"Failed to create [a-z ]+: ")
_VALUE = re.compile(r'(?<=value ")[^"]*(?=")')  # what was given may be a secret in the wrong place
_quiet = logging.getLogger("headrace.kafka.check")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())


def config_faults(settings: Settings) -> list[tuple[str | None, str]]:
    """What the client refuses in `kafka.config`, as (property, reason); the property None where several do not fit together."""
    given = settings.kafka.config
    if not given:
        return []
    alone = [(name, reason) for name, value in given.items() if (reason := _refused(name, value)) is not None]
    if alone:
        return list(alone)
    return [(None, reason) for reason in dict.fromkeys(_refused_together(settings))]


def _refused(name: str, value: object) -> str | None:
    if not isinstance(value, str | int | float | None):
        return "must be text, a number, or true or false"
    error = _error(AdminClient, {name: value})
    if error is None or _CREATION.match(error):
        return None  # what one property needs of others is judged together
    if error.startswith("No such configuration property"):
        return "Kafka's client (librdkafka) knows no such property"
    return f"Kafka's client (librdkafka) does not take its value ({error})"


def _refused_together(settings: Settings) -> list[str]:
    clients: tuple[tuple[Callable[[dict[str, Any]], object], dict[str, Any]], ...] = (
        (AdminClient, base_config(settings, "check")),
        (Producer, producer_config(settings, "check", "check", batch_bytes=1 << 20)),
        (Consumer, consumer_config(settings, "check", "check", protocol=protocol_of(settings), queue_kbytes=1024)),
    )
    errors = (_error(client, {name: value for name, value in config.items() if name != "bootstrap.servers"}) for client, config in clients)
    return [f"Kafka's client (librdkafka) refuses it: {_CREATION.sub('', error)}" for error in errors if error is not None]


def _error(client: Callable[[dict[str, Any]], object], config: Mapping[str, Any]) -> str | None:
    try:
        client({name: value for name, value in config.items() if name != "oauth_cb"} | {"logger": _quiet})  # that would fetch a token
    except KafkaException as error:
        return _VALUE.sub("…", error.args[0].str().strip())
    except (TypeError, ValueError) as error:
        return str(error)
    return None
