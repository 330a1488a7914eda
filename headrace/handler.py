"""What answers a request: the default is one call to the model; a user's own is named `package.module:function`."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headrace.context import Context, Model
from headrace.envelope import Request, Response
from headrace.errors import CallFailed, ConfigError, Dead, Delay, HeadraceError, Retry

__all__ = ["Context", "Handler", "Model", "call_model", "decisive", "load_handler"]

Handler = Callable[[Request, Context], Awaitable[Response]]


async def call_model(request: Request, ctx: Context) -> Response:
    """The default handler: the request as it is, to the model."""
    return await ctx.llm.call(request)


async def decisive(answer: Awaitable[Any]) -> Any:
    """The answer. Of errors raised together, as by a TaskGroup, one decides: a verdict before a call that failed, that before any other."""
    try:
        return await answer
    except BaseExceptionGroup as group:
        raise min(_leaves(group), key=_rank) from group


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _rank(error: BaseException) -> int:
    kinds: tuple[type[BaseException], ...] = (Dead, Delay, Retry, CallFailed, HeadraceError)
    return next((rank for rank, kind in enumerate(kinds) if isinstance(error, kind)), len(kinds))


def load_handler(name: str | None) -> Handler:
    """The handler called `package.module:function`; None is the default one. Raises ConfigError.

    A method of an object in the module (`module:object.method`), an object with an async `__call__` and a functools.partial do too.
    """
    if name is None:
        return call_model
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError([f"handler: {name!r} does not read package.module:function"])
    handler: Any = _module(module_name)
    for part in path.split("."):
        if not hasattr(handler, part):
            raise ConfigError([f"handler: {path!r} is missing in {module_name}; it must be `async def {path}(request, ctx)`"])
        handler = getattr(handler, part)
    if (what := _unfit(handler)) is not None:
        raise ConfigError([f"handler: {path!r} {what} in {module_name}; it must be `async def {path}(request, ctx)`"])
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise ConfigError([f"handler: {name} cannot take (request, ctx): {error}"]) from None
    return handler  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:  # a console script has its own folder there, not the one it is run from
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a module's own code runs here, and may raise anything
        raise ConfigError(
            [
                f"handler: module {name!r} cannot be imported: {type(error).__name__}: {error}; run from the folder that holds it, or install it"
            ]
        ) from error


def _unfit(handler: Any) -> str | None:
    """What is wrong with it, if it is no async function and nothing that is called like one."""
    if inspect.isclass(handler):
        return "is a class, not an object made of it,"
    inner = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    called = inner if inspect.isroutine(inner) else getattr(type(inner), "__call__", None)  # noqa: B004  what is called is looked at
    if inspect.isasyncgenfunction(called):
        return "yields, and so has no answer to return,"
    return None if inspect.iscoroutinefunction(called) else "is no `async def`"
