"""Measurements anyone can repeat: `make bench`. Each runs on a stack of its own, and compares within one run only."""
