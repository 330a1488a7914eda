"""What each error class may cost, and how long a target stays shut."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, Field

from headrace.config.strict import STRICT
from headrace.errors import ErrorClass


class ClassPolicy(BaseModel):
    """What an error class may cost. None: no bound. `calls` 0: no attempt is ever spent, the target is paused."""

    model_config = STRICT
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

    model_config = STRICT
    first_s: float = Field(default=30.0, gt=0)
    cap_s: float = Field(default=900.0, gt=0)
