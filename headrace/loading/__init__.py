"""The configuration, read: environment beats `headrace.yaml` beats default; every fault at once, before anything starts."""

from headrace.loading.loader import load, missing_keys

__all__ = ["load", "missing_keys"]
