"""The providers of models: where each is, with which key, and how long a call may take."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, SecretStr

from headrace.config.strict import STRICT


class ProviderSettings(BaseModel):
    """One OpenAI-compatible server. Time-outs are in seconds; `timeout_s` ends the whole call."""

    model_config = STRICT
    name: str = Field(default="openai", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    base_url: str = "https://api.openai.com/v1"
    api_key: SecretStr | None = None
    default_model: str = "gpt-4o-mini"
    transport: Literal["direct", "sdk"] = "direct"
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    connect_timeout_s: float = Field(default=5.0, gt=0, le=60)
