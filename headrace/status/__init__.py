"""The fleet at one moment, for a person or a program: `gather` asks Kafka and Redis, `picture` holds what they said, `screen` and `lines` tell it."""

from headrace.status.gather import Gather
from headrace.status.picture import Picture
from headrace.status.screen import screen

__all__ = ["Gather", "Picture", "screen"]
