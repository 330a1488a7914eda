"""The configuration, read: environment beats `headrace.yaml` beats default; every fault at once, before anything starts."""

from headrace.loading.loader import Loaded, keyless, load, load_all, missing_keys
from headrace.loading.origin import ProviderOrigin

__all__ = ["Loaded", "ProviderOrigin", "keyless", "load", "load_all", "missing_keys"]
