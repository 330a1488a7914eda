"""The one configuration model: what may be set, its bounds and its defaults.

Reading the environment and `headrace.yaml` into it, and naming every fault at once, is `loading`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from headrace.errors import ErrorClass, KafkaUnavailable

_STRICT = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(BaseModel):
    """Where the broker is. `config` is merged into every client's librdkafka configuration (SASL, TLS)."""

    model_config = _STRICT
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

    model_config = _STRICT
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    on_outage: Literal["pause", "continue"] = "pause"


class HttpSettings(BaseModel):
    """Where probes are answered. Port 0: any free one, told at the start."""

    model_config = _STRICT
    host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    metrics_port: int = Field(default=0, ge=0, le=65_535)


class TopicNames(BaseModel):
    """The names the lanes use; `topics.yaml` sets them, with everything else of a topic."""

    model_config = _STRICT
    main: str = "llm_requests_main"
    retry: str = "llm_requests_retry"
    later: str = "llm_requests_retry_later"
    dlq: str = "llm_requests_dlq"
    results: str = "llm_results"


class ProviderSettings(BaseModel):
    """One OpenAI-compatible server. Time-outs are in seconds; `timeout_s` ends the whole call."""

    model_config = _STRICT
    name: str = Field(default="openai", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    base_url: str = "https://api.openai.com/v1"
    api_key: SecretStr | None = None
    default_model: str = "gpt-4o-mini"
    transport: Literal["direct", "sdk"] = "direct"
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    connect_timeout_s: float = Field(default=5.0, gt=0, le=60)


class ClassPolicy(BaseModel):
    """What an error class may cost. None: no bound. `calls` 0: no attempt is ever spent, the target is paused."""

    model_config = _STRICT
    calls: int | None = Field(default=None, ge=0, le=1000)
    in_all_s: float | None = Field(default=None, gt=0)
    base_s: float = Field(default=0.5, gt=0, le=3600)
    cap_s: float = Field(default=60.0, gt=0, le=86_400)


_HOUR = 3600.0
DEFAULT_POLICIES: Mapping[ErrorClass, ClassPolicy] = {
    ErrorClass.RATE_LIMITED: ClassPolicy(in_all_s=_HOUR, base_s=2.0),
    ErrorClass.OVERLOADED: ClassPolicy(calls=5, in_all_s=_HOUR),
    ErrorClass.SERVER_ERROR: ClassPolicy(calls=5, in_all_s=_HOUR),
    ErrorClass.CONNECTION: ClassPolicy(calls=5, in_all_s=_HOUR),
    ErrorClass.TIMEOUT: ClassPolicy(calls=3, in_all_s=_HOUR),
    ErrorClass.INVALID_RESPONSE: ClassPolicy(calls=3, in_all_s=_HOUR),
    ErrorClass.INTERNAL: ClassPolicy(calls=3, in_all_s=_HOUR),
    ErrorClass.QUOTA_EXHAUSTED: ClassPolicy(calls=0),
    ErrorClass.AUTH: ClassPolicy(calls=0),
    ErrorClass.NOT_FOUND: ClassPolicy(calls=1),
    ErrorClass.CONTEXT_LENGTH: ClassPolicy(calls=1),
    ErrorClass.CONTENT_POLICY: ClassPolicy(calls=1),
    ErrorClass.INVALID_REQUEST: ClassPolicy(calls=1),
    ErrorClass.TOO_LARGE: ClassPolicy(calls=1),
    ErrorClass.EXPIRED: ClassPolicy(calls=1),
    ErrorClass.UNDECODABLE: ClassPolicy(calls=1),
    ErrorClass.ID_CONFLICT: ClassPolicy(calls=1),
    ErrorClass.CANCELLED: ClassPolicy(calls=1),
    ErrorClass.RATE_RULE: ClassPolicy(calls=1),
}


class PauseSettings(BaseModel):
    """How long a target is shut after a quota or auth fault: doubles with each failed reopening, in seconds."""

    model_config = _STRICT
    first_s: float = Field(default=30.0, gt=0)
    cap_s: float = Field(default=900.0, gt=0)


class LimitSettings(BaseModel):
    """What one process holds at most. Bytes are of record keys and values."""

    model_config = _STRICT
    concurrency: int = Field(default=64, ge=1, le=100_000)
    read_ahead_records: int = Field(default=20_000, ge=10)
    read_ahead_bytes: int = Field(default=64 << 20, ge=1 << 20)
    unsettled_outcomes: int = Field(default=8_000, ge=10)
    window: int = Field(default=24_000, ge=100, le=24_000)
    settle_records: int = Field(default=2_000, ge=1, le=10_000)
    settle_interval_ms: int = Field(default=20, ge=0, le=1_000)
    parked_records: int = Field(default=1_000_000, ge=1)
    longest_delay_s: float = Field(default=86_400.0, gt=4, le=7 * 86_400)


class Settings(BaseModel):
    """Everything a worker needs to know before it starts."""

    model_config = _STRICT
    namespace: str = Field(default="headrace", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    instance: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$")
    grace_s: float = Field(default=25.0, ge=0, le=3600)
    handler: str | None = None
    handler_timeout_s: float | None = Field(None, gt=0, le=86_400)
    topics_file: Path | None = None
    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    http: HttpSettings = HttpSettings()
    topics: TopicNames = TopicNames()
    providers: tuple[ProviderSettings, ...] = (ProviderSettings(),)
    policy: dict[ErrorClass, ClassPolicy] = Field(default_factory=dict)
    pause: PauseSettings = PauseSettings()
    limits: LimitSettings = LimitSettings()
    sentry_dsn: SecretStr | None = None
    duplicate_notices: bool = True
    replay_cap: int = Field(default=5, ge=1, le=100)

    def policy_of(self, error_class: ErrorClass) -> ClassPolicy:
        """The policy of an error class: what is configured, over the design's default."""
        given = self.policy.get(error_class)
        default = DEFAULT_POLICIES[error_class]
        return default if given is None else default.model_copy(update=given.model_dump(exclude_unset=True))
