"""A load of synthetic requests at a rate of its own, whatever the broker and the workers do: open loop, seeded, repeatable."""

from headrace.loadgen.mix import Mix, Planned
from headrace.loadgen.run import Load
from headrace.loadgen.schedule import Arrivals, arrivals

__all__ = ["Arrivals", "Load", "Mix", "Planned", "arrivals"]
