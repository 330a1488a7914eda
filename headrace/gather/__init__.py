"""`headrace produce --wait`: requests sent, their ends gathered into JSONL, and a run that was cut off taken up where it was."""

from headrace.gather.gathering import Gathering
from headrace.gather.run import Place, Run, taken_up
from headrace.gather.sheet import Sheet

__all__ = ["Gathering", "Place", "Run", "Sheet", "taken_up"]
