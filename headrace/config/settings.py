"""The one model of the configuration: everything a worker needs to know before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from headrace.config.limits import LimitSettings
from headrace.config.policy import DEFAULT_POLICIES, ClassPolicy, PauseSettings
from headrace.config.providers import ANY, LINKS, LinkSettings, ProviderSettings
from headrace.config.servers import HttpSettings, KafkaSettings, RedisSettings, TopicNames
from headrace.config.strict import STRICT_SETTINGS
from headrace.errors import ErrorClass

Chain = Annotated[tuple[LinkSettings, ...], Field(min_length=1, max_length=LINKS)]


class Settings(BaseSettings):
    """Everything a worker needs to know before it starts. Built directly it holds what it is given, and reads nothing: that is `loading`'s."""

    model_config = STRICT_SETTINGS
    namespace: str = Field(
        default="headrace", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Prefix of consumer groups, transactional ids and Redis keys."
    )
    instance: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of this process, for its transactional ids; unset: a random one. No two processes may share one.",
    )
    grace_s: float = Field(default=25.0, ge=0, le=3600, description="How long calls in flight may go on after SIGTERM, in seconds.")
    handler: str | None = Field(default=None, description="`package.module:function` instead of one call to the model.")
    handler_timeout_s: float | None = Field(
        default=None, gt=0, le=86_400, description="How long a handler may take, in seconds; unset: 300 for one of your own."
    )
    topics_file: Path | None = Field(
        default=None, description="The `topics.yaml`; unset: the one beside `headrace.yaml` or in the folder, else the one in the package."
    )
    kafka: KafkaSettings = Field(default=KafkaSettings(), description="The broker, and how to get in.")
    redis: RedisSettings = Field(default=RedisSettings(), description="The store of claims, pauses and controls.")
    http: HttpSettings = Field(default=HttpSettings(), description="Probes and metrics.")
    topics: TopicNames = Field(default=TopicNames(), description="The names of the topics; set in `topics.yaml`, never here.")
    providers: tuple[ProviderSettings, ...] = Field(
        default=(ProviderSettings(),), description="The model servers, in the order of their use."
    )
    models: dict[Annotated[str, Field(min_length=1, max_length=256)], Chain] = Field(
        default_factory=dict, description="For each model, by name or `*` for the others, the chain of providers that are asked for it."
    )
    policy: dict[ErrorClass, ClassPolicy] = Field(default_factory=dict, description="What each error class may cost, over its default.")
    pause: PauseSettings = Field(default=PauseSettings(), description="How long a target stays shut after a quota or key fault.")
    limits: LimitSettings = Field(default=LimitSettings(), description="What one process holds at most.")
    sentry_dsn: SecretStr | None = Field(default=None, description="Where alerts of the dead-letter lane go, besides the log.")
    duplicate_notices: bool = Field(
        default=True, description="Whether a copy of a settled request gets a `duplicate` notice in the results."
    )
    replay_cap: int = Field(default=5, ge=1, le=100, description="How often one dead letter may be replayed.")

    @classmethod
    def settings_customise_sources(  # without sources of the process's: a program or a test that builds Settings means what it says
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    def model_names(self) -> set[str]:
        """Every model the configuration names."""
        linked = {link.model for chain in self.models.values() for link in chain if link.model is not None}
        return {one.default_model for one in self.providers} | (self.models.keys() - {ANY}) | linked

    def policy_of(self, error_class: ErrorClass) -> ClassPolicy:
        """The policy of an error class: what is configured, over the design's default."""
        given = self.policy.get(error_class)
        default = DEFAULT_POLICIES[error_class]
        return default if given is None else default.model_copy(update=given.model_dump(exclude_unset=True))
