"""The one configuration model: what may be set, its bounds and its defaults.

Reading the environment and `headrace.yaml` into it, and naming every fault at once, is `loading`'s work.
"""

from headrace.config.limits import LimitSettings
from headrace.config.policy import DEFAULT_POLICIES, ClassPolicy, PauseSettings
from headrace.config.providers import (
    ANY,
    LINKS,
    EjectionSettings,
    EndpointSettings,
    HealthSettings,
    LinkSettings,
    ProviderSettings,
    Server,
)
from headrace.config.servers import HttpSettings, KafkaSettings, RedisSettings, TopicNames
from headrace.config.settings import Settings

__all__ = [
    "ANY",
    "DEFAULT_POLICIES",
    "LINKS",
    "ClassPolicy",
    "EjectionSettings",
    "EndpointSettings",
    "HealthSettings",
    "HttpSettings",
    "KafkaSettings",
    "LimitSettings",
    "LinkSettings",
    "PauseSettings",
    "ProviderSettings",
    "RedisSettings",
    "Server",
    "Settings",
    "TopicNames",
]
