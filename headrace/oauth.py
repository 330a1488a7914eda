"""Tokens for SASL/OAUTHBEARER from a function of the user's, where no OIDC address gives them (AWS MSK with IAM, for one)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError


def token_source(name: str) -> Callable[[str], tuple[str, float]]:
    """The function called `package.module:function`, imported now. Raises ConfigError.

    Kafka's client calls it with `sasl.oauthbearer.config`, in a thread of its own; it returns the token and the end of its life in
    epoch seconds, and is called again before that.
    """
    module, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a handler: one's own module lies where one stands
    try:
        found: Any = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise ConfigError([f"kafka.oauth_token: {module} cannot be imported ({type(error).__name__}: {error}); correct it"]) from error
    if not callable(found):
        raise ConfigError([f"kafka.oauth_token: {module} has no function {attribute}; correct the name"])
    return found  # type: ignore[no-any-return]  # what it returns is checked by the client, at each call


def why_unusable(name: str) -> str | None:
    """What is wrong with it, with the remedy; None where it can be called."""
    try:
        token_source(name)
    except ConfigError as error:
        return error.faults[0].removeprefix("kafka.oauth_token: ")
    return None
