"""What each error class may cost, and how long a target stays shut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, Field

from headrace.config.strict import STRICT
from headrace.errors import ErrorClass


class ClassPolicy(BaseModel):
    """What an error class may cost. None: no bound. `calls` 0: no attempt is ever spent, the target is paused.

    `fallback` is when the next link of the model's chain is called instead: after the first failure, after the calls
    that one link may have, or never. `calls` is per link, `in_all_s` of the whole request.
    """

    model_config = STRICT
    calls: int | None = Field(
        default=None, ge=0, le=1000, description="Calls at most; unset: no bound. 0: none is ever spent, the target is paused."
    )
    in_all_s: float | None = Field(default=None, gt=0, description="Calls and planned waits at most, in seconds.")
    base_s: float = Field(default=0.5, gt=0, le=3600, description="The backoff's first step, in seconds.")
    cap_s: float = Field(default=60.0, gt=0, le=86_400, description="The longest backoff, in seconds.")
    fallback: Literal["never", "exhausted", "at_once"] = Field(
        default="never",
        description="When the next link of the model's chain is asked instead: never, once this one's calls are spent, or at once.",
    )


_HOUR = 3600.0
DEFAULT_POLICIES: Mapping[ErrorClass, ClassPolicy] = {
    ErrorClass.RATE_LIMITED: ClassPolicy(in_all_s=_HOUR, base_s=2.0),
    ErrorClass.OVERLOADED: ClassPolicy(calls=5, in_all_s=_HOUR, fallback="exhausted"),
    ErrorClass.SERVER_ERROR: ClassPolicy(calls=5, in_all_s=_HOUR, fallback="exhausted"),
    ErrorClass.CONNECTION: ClassPolicy(calls=5, in_all_s=_HOUR, fallback="exhausted"),
    ErrorClass.TIMEOUT: ClassPolicy(calls=3, in_all_s=_HOUR),
    ErrorClass.INVALID_RESPONSE: ClassPolicy(calls=3, in_all_s=_HOUR),
    ErrorClass.INTERNAL: ClassPolicy(calls=3, in_all_s=_HOUR),
    ErrorClass.QUOTA_EXHAUSTED: ClassPolicy(calls=0, fallback="at_once"),
    ErrorClass.AUTH: ClassPolicy(calls=0, fallback="at_once"),
    ErrorClass.NOT_FOUND: ClassPolicy(calls=1, fallback="at_once"),
    ErrorClass.CONTEXT_LENGTH: ClassPolicy(calls=1, fallback="at_once"),
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

    model_config = STRICT
    first_s: float = Field(
        default=30.0, gt=0, description="How long a target is shut at first, in seconds; twice as long after each failed reopening."
    )
    cap_s: float = Field(default=900.0, gt=0, description="The longest it is shut, in seconds.")
