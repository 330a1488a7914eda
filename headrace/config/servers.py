"""The servers a worker talks to, what it listens on, and the names of the topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr

from headrace.config.access import remedy_for
from headrace.config.strict import STRICT
from headrace.errors import KafkaUnavailable


class KafkaSettings(BaseModel):
    """Where the broker is, and how to get in. Durations are in milliseconds."""

    model_config = STRICT
    bootstrap: str = Field(default="127.0.0.1:9092", description="`host:port` of a broker, or several with commas between.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="librdkafka properties of every client of ours (SASL, TLS), merged with the file's by name.",
    )
    secret_files: dict[str, Path] = Field(
        default_factory=dict,
        description="Properties of `kafka.config` whose value stands in a file, by name: `sasl.password: /run/secrets/kafka`.",
    )
    oauth_token: str | None = Field(
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="`package.module:function` that returns (token, its end in epoch seconds) for OAUTHBEARER without an OIDC address.",
    )
    group_protocol: Literal["auto", "consumer", "classic"] = Field(
        default="auto", description="`consumer` is KIP-848, `classic` cooperative-sticky; `auto` asks the broker."
    )
    max_poll_interval_ms: int = Field(
        default=300_000, ge=10_000, description="After so long without a poll the group takes the partitions away."
    )
    transaction_timeout_ms: int = Field(
        default=12_000,
        ge=2_000,
        le=60_000,
        description="After so long the broker aborts an open transaction: how long a crash holds up readers.",
    )

    def unavailable(self, reason: str) -> KafkaUnavailable:
        """The error that names the address, the reason and the remedy."""
        remedy = remedy_for(reason, secured="security.protocol" in self.config)
        return KafkaUnavailable(f"Kafka at {self.bootstrap}: {reason}{'. ' if remedy.endswith(('?', '.')) else '; '}{remedy}")


class RedisSettings(BaseModel):
    """Where Redis is, and what a lane does while it is out of reach."""

    model_config = STRICT
    url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        description="`redis://user:password@host:port/db`, `rediss://…` for TLS, `unix://path`.",
    )
    on_outage: Literal["pause", "continue"] = Field(
        default="pause",
        description="Without Redis: wait, or go on without knowing copies of a request (they may be called and answered twice).",
    )


class HttpSettings(BaseModel):
    """Where probes are answered. Port 0: any free one, told at the start."""

    model_config = STRICT
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=253,
        description="The address probes and metrics are answered at; 0.0.0.0 in a container.",
    )
    metrics_port: int = Field(default=0, ge=0, le=65_535, description="Its port; 0: any free one, told as `health_listening`.")


class TopicNames(BaseModel):
    """The names the lanes use; `topics.yaml` sets them, with everything else of a topic."""

    model_config = STRICT
    main: str = Field(default="llm_requests_main", description="Requests.")
    retry: str = Field(default="llm_requests_retry", description="Requests that wait for another attempt.")
    later: str = Field(default="llm_requests_retry_later", description="The timing wheels; written by Headrace alone.")
    dlq: str = Field(default="llm_requests_dlq", description="Dead letters.")
    results: str = Field(default="llm_results", description="Answers and notices.")
