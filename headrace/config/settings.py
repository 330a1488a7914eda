"""The one model of the configuration: everything a worker needs to know before it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr

from headrace.config.limits import LimitSettings
from headrace.config.policy import DEFAULT_POLICIES, ClassPolicy, PauseSettings
from headrace.config.providers import ProviderSettings
from headrace.config.servers import HttpSettings, KafkaSettings, RedisSettings, TopicNames
from headrace.config.strict import STRICT
from headrace.errors import ErrorClass


class Settings(BaseModel):
    """Everything a worker needs to know before it starts."""

    model_config = STRICT
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
