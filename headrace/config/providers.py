"""The providers of models: where each is, with which key, how long a call may take, and which model is asked of whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, SecretStr, model_validator

from headrace.config.strict import STRICT

ANY = "*"  # the chain of every model that has none of its own
LINKS = 8  # of a chain: what a request was refused by must fit beside its last attempts


class EndpointSettings(BaseModel):
    """One address of a provider. What is not given is the provider's; `headers` come on top of its headers."""

    model_config = STRICT
    base_url: str = Field(min_length=1, description="The address, up to `/v1`.")
    weight: float = Field(default=1.0, gt=0, le=1000, description="Its share of the calls, beside the others' weights.")
    api_key: SecretStr | None = Field(default=None, description="Its own key, in the file; better from a variable or a file.")
    api_key_env: str | None = Field(default=None, description="The variable its own key stands in.")
    api_key_file: Path | None = Field(default=None, description="The file its own key stands in; read again when it changes.")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Sent with each call to it, on top of the provider's.")
    timeout_s: float | None = Field(
        default=None, gt=0, le=3600, description="After so long a call has failed, in seconds; unset: the provider's."
    )
    connect_timeout_s: float | None = Field(
        default=None, gt=0, le=60, description="For connecting alone, in seconds; unset: the provider's."
    )


class EjectionSettings(BaseModel):
    """When an endpoint is left out: after so many failures in a row (connection, 5xx, time-out), for `for_s`, twice as long each time.

    `most_share` of the endpoints may be out at once, rounded down: of one endpoint none.
    """

    model_config = STRICT
    failures: int = Field(default=5, ge=1, le=1000, description="Failures in a row after which an endpoint is left out.")
    for_s: float = Field(default=10.0, gt=0, le=3600, description="For how long at first, in seconds; twice as long each time.")
    cap_s: float = Field(default=300.0, gt=0, le=86_400, description="The longest it is left out, in seconds.")
    most_share: float = Field(default=0.5, ge=0, le=1, description="The share of the endpoints that may be out at once, rounded down.")


class HealthSettings(BaseModel):
    """A GET that tells whether an endpoint works: any 2xx. `path` is of the server, not under `base_url`: `/health`."""

    model_config = STRICT
    path: str = Field(
        pattern=r"^/[!-~]{0,200}$", description="The path of the server (not under `base_url`) that answers 2xx while it works."
    )
    every_s: float = Field(default=10.0, ge=0.1, le=3600, description="How often it is asked, in seconds.")
    timeout_s: float = Field(default=2.0, gt=0, le=60, description="After so long it counts as not working, in seconds.")


class ProviderSettings(BaseModel):
    """One OpenAI-compatible server, or several endpoints of one. Time-outs are in seconds; `timeout_s` ends the whole call.

    `auth` is how the key is sent: `Authorization: Bearer`, or Azure's `api-key` header, its default there.
    """

    model_config = STRICT
    name: str = Field(default="openai", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="What chains, pauses, logs and metrics call it.")
    kind: Literal["openai", "azure"] = Field(default="openai", description="`azure`: its paths and its header for the key.")
    api_version: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9-]{1,32}$", description="Azure's version of the interface, a date; unset: v1."
    )
    base_url: str = Field(default="https://api.openai.com/v1", description="The address, up to `/v1`; of one endpoint.")
    endpoints: tuple[EndpointSettings, ...] = Field(default=(), description="Several addresses of the same models, instead of `base_url`.")
    api_key: SecretStr | None = Field(default=None, description="The key, in the file; better from a variable or a file.")
    api_key_env: str | None = Field(default=None, description="The variable the key stands in.")
    api_key_file: Path | None = Field(default=None, description="The file the key stands in; read again when it changes.")
    auth: Literal["bearer", "api-key"] | None = Field(
        default=None, description="How the key is sent: as `Authorization: Bearer`, or as the header `api-key`; unset: as its kind does."
    )
    default_model: str = Field(default="gpt-4o-mini", description="The model of a request that names none.")
    transport: Literal["direct", "sdk"] = Field(
        default="direct", description="`direct` sends the bytes itself; `sdk` goes through a client of the `openai` package."
    )
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Sent with each call.")
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="After so long a call has failed, in seconds.")
    connect_timeout_s: float = Field(default=5.0, gt=0, le=60, description="For connecting alone, in seconds.")
    balance: Literal["weighted", "least_in_flight"] = Field(
        default="weighted", description="How an endpoint is chosen: by weight, or the one with the fewest calls in flight."
    )
    ejection: EjectionSettings = Field(default=EjectionSettings(), description="When an endpoint that keeps failing is left out.")
    health: HealthSettings | None = Field(default=None, description="Whether endpoints are asked how they are.")

    def servers(self) -> tuple[Server, ...]:
        """Every address of it, with what applies there."""
        if not self.endpoints:
            return (self._server(EndpointSettings(base_url=self.base_url)),)
        return tuple(self._server(endpoint) for endpoint in self.endpoints)

    def longest_s(self) -> float:
        """The longest a call to it may take."""
        return max(server.timeout_s for server in self.servers())

    def _server(self, endpoint: EndpointSettings) -> Server:
        own = any(value is not None for value in (endpoint.api_key, endpoint.api_key_env, endpoint.api_key_file))
        timeout_s = endpoint.timeout_s or self.timeout_s
        return Server(
            base_url=endpoint.base_url,
            weight=endpoint.weight,
            api_key=endpoint.api_key if own else self.api_key,
            api_key_file=endpoint.api_key_file if own else self.api_key_file,
            headers={**self.headers, **endpoint.headers},
            timeout_s=timeout_s,
            connect_timeout_s=min(endpoint.connect_timeout_s or self.connect_timeout_s, timeout_s),
        )


class Server(NamedTuple):
    """An address of a provider, and what applies there: its own settings, or the provider's."""

    base_url: str
    weight: float
    api_key: SecretStr | None
    api_key_file: Path | None
    headers: dict[str, SecretStr]
    timeout_s: float
    connect_timeout_s: float


class LinkSettings(BaseModel):
    """One link of a chain: a provider by name, and the model asked of it; without one, the model the request names.

    A text alone is a provider's name.
    """

    model_config = STRICT
    provider: str = Field(description="The provider's name.")
    model: str | None = Field(
        default=None, min_length=1, max_length=256, description="The model asked of it; unset: the one the request names."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"provider": value} if isinstance(value, str) else value
