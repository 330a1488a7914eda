"""The timing wheels: records that are due later than the retry lane's heap holds, moved along partitions until they are near."""

from headrace.wheels.loop import Wheels

__all__ = ["Wheels"]
