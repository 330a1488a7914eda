"""What operators ordered: pauses and cancellations. Pure; the exchange with the fleet is `shared_controls`', keeping them is the store's."""

from headrace.controls.controls import Controls
from headrace.controls.entry import Entry, Scope
from headrace.controls.rules import Rules

__all__ = ["Controls", "Entry", "Rules", "Scope"]
