"""What answers a request: the default is one call to the model; a user's own is named `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.envelope import Request, Response
from headrace.errors import ConfigError


class Model(Protocol):
    """The guarded client: one call to a model under the attempt's deadline. Raises CallFailed, and TargetShut while it is paused."""

    async def call(self, request: Request) -> Response: ...


class Context(NamedTuple):
    """What a handler is given. `deadline_s` is what was left of its time when it began; `attempt` counts from 1."""

    llm: Model
    attempt: int
    deadline_s: float


Handler = Callable[[Request, Context], Awaitable[Response]]


async def call_model(request: Request, ctx: Context) -> Response:
    """The default handler: the request as it is, to the model."""
    return await ctx.llm.call(request)


def load_handler(name: str | None) -> Handler:
    """The handler called `package.module:function`; None is the default one. Raises ConfigError."""
    if name is None:
        return call_model
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError([f"handler: {name!r} does not read package.module:function"])
    if (here := str(Path.cwd())) not in sys.path:  # a console script has its own folder there, not the one it is run from
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module's own code runs here, and may raise anything
        raise ConfigError(
            [
                f"handler: module {module_name!r} cannot be imported: {type(error).__name__}: {error}; run from the folder that holds it, or install it"
            ]
        ) from error
    handler = getattr(module, attribute, None)
    if not inspect.iscoroutinefunction(handler):
        what = "is missing" if handler is None else "is no `async def`"
        raise ConfigError([f"handler: {attribute!r} {what} in {module_name}; it must be `async def {attribute}(request, ctx)`"])
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise ConfigError([f"handler: {name} cannot take (request, ctx): {error}"]) from None
    return handler
