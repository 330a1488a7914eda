"""What one process holds at most."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.config.strict import STRICT


class LimitSettings(BaseModel):
    """What one process holds at most. Bytes are of record keys and values."""

    model_config = STRICT
    concurrency: int = Field(default=64, ge=1, le=100_000, description="Calls to the model in flight in each lane.")
    read_ahead_records: int = Field(default=20_000, ge=10, description="Records of a lane read and not yet settled; then reading pauses.")
    read_ahead_bytes: int = Field(default=64 << 20, ge=1 << 20, description="The same in bytes of keys and values.")
    unsettled_outcomes: int = Field(
        default=8_000,
        ge=10,
        description="Outcomes of a lane that wait for a settle; then nothing more is called. A kill -9 costs as many calls.",
    )
    window: int = Field(
        default=24_000,
        ge=100,
        le=24_000,
        description="How far reading may go beyond the oldest unsettled record of a partition, in offsets.",
    )
    settle_records: int = Field(default=2_000, ge=1, le=10_000, description="Outcomes in one Kafka transaction.")
    settle_interval_ms: int = Field(default=20, ge=0, le=1_000, description="Between the beginnings of two transactions of a lane, in ms.")
    parked_records: int = Field(default=1_000_000, ge=1, description="Records that wait for a retry, fleet-wide; above it main stops.")
    longest_delay_s: float = Field(
        default=86_400.0, gt=4, le=7 * 86_400, description="The longest delay a retry may ask for, in seconds; a later one is dead."
    )
