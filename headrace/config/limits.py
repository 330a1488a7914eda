"""What one process holds at most."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.config.strict import STRICT


class LimitSettings(BaseModel):
    """What one process holds at most. Bytes are of record keys and values."""

    model_config = STRICT
    concurrency: int = Field(default=64, ge=1, le=100_000)
    read_ahead_records: int = Field(default=20_000, ge=10)
    read_ahead_bytes: int = Field(default=64 << 20, ge=1 << 20)
    unsettled_outcomes: int = Field(default=8_000, ge=10)
    window: int = Field(default=24_000, ge=100, le=24_000)
    settle_records: int = Field(default=2_000, ge=1, le=10_000)
    settle_interval_ms: int = Field(default=20, ge=0, le=1_000)
    parked_records: int = Field(default=1_000_000, ge=1)
    longest_delay_s: float = Field(default=86_400.0, gt=4, le=7 * 86_400)
