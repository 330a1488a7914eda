"""The servers a worker talks to, what it listens on, and the names of the topics."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr

from headrace.config.strict import STRICT
from headrace.errors import KafkaUnavailable


class KafkaSettings(BaseModel):
    """Where the broker is. `config` is merged into every client's librdkafka configuration (SASL, TLS)."""

    model_config = STRICT
    bootstrap: str = "127.0.0.1:9092"
    config: dict[str, Any] = Field(default_factory=dict, repr=False)
    group_protocol: Literal["auto", "consumer", "classic"] = "auto"
    max_poll_interval_ms: int = Field(default=300_000, ge=10_000)
    transaction_timeout_ms: int = Field(default=12_000, ge=2_000, le=60_000)

    def unavailable(self, reason: str) -> KafkaUnavailable:
        """The error that names the address, the reason and the remedy."""
        return KafkaUnavailable(f"Kafka at {self.bootstrap}: {reason}. Is it running, and is HEADRACE_KAFKA_BOOTSTRAP right?")


class RedisSettings(BaseModel):
    """Where Redis is, and what a lane does while it is out of reach."""

    model_config = STRICT
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    on_outage: Literal["pause", "continue"] = "pause"


class HttpSettings(BaseModel):
    """Where probes are answered. Port 0: any free one, told at the start."""

    model_config = STRICT
    host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    metrics_port: int = Field(default=0, ge=0, le=65_535)


class TopicNames(BaseModel):
    """The names the lanes use; `topics.yaml` sets them, with everything else of a topic."""

    model_config = STRICT
    main: str = "llm_requests_main"
    retry: str = "llm_requests_retry"
    later: str = "llm_requests_retry_later"
    dlq: str = "llm_requests_dlq"
    results: str = "llm_results"
