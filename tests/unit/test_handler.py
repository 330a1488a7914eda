"""Finding a user's handler: every fault is named before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

from headrace.errors import ConfigError
from headrace.handler import call_model, load_handler

GOOD = "async def handle(request, ctx):\n    return None\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder a worker is run from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    with mock.patch.dict(sys.modules):
        yield tmp_path


def test_without_a_name_the_model_is_called() -> None:
    """The default handler is one call."""
    assert load_handler(None) is call_model


def test_a_handler_is_found_where_the_worker_is_run(folder: Path) -> None:
    """As a module of the current folder, which a console script has not on its path; in a package too."""
    (folder / "my_steps_one.py").write_text(GOOD)
    assert load_handler("my_steps_one:handle").__name__ == "handle"
    (folder / "my_package_one").mkdir()
    (folder / "my_package_one" / "steps.py").write_text(GOOD)
    assert load_handler("my_package_one.steps:handle").__name__ == "handle"


@pytest.mark.parametrize("name", ["", "module", "module:", ":function", "module.function"])
def test_another_form_is_refused(name: str) -> None:
    """The message shows how it reads."""
    with pytest.raises(ConfigError, match=r"package\.module:function"):
        load_handler(name)


@pytest.mark.parametrize("name", ["no_such_module_here:f", "headrace.no_such:f", ".relative:f", "headrace..x:f"])
def test_a_module_that_is_not_there_is_named(folder: Path, name: str) -> None:
    """With what to do about it."""
    with pytest.raises(ConfigError, match=r"cannot be imported.*run from the folder that holds it"):
        load_handler(name)


@pytest.mark.parametrize("text", ["def f(:\n", "import no_such_module_here\n", "raise RuntimeError('at import')\n", "1 / 0\n"])
def test_a_module_that_fails_is_a_fault_of_the_configuration(folder: Path, text: str) -> None:
    """A syntax error, a missing dependency, code that raises: refused with the reason, not a traceback."""
    (folder / "my_broken.py").write_text(text)
    with pytest.raises(ConfigError, match="my_broken"):
        load_handler("my_broken:handle")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is missing"),
        ("handle = 7\n", "is no `async def`"),
        ("def handle(request, ctx): ...\n", "is no `async def`"),
        ("async def handle(request, ctx):\n    yield 1\n", "yields"),
        ("def handle(request, ctx):\n    yield 1\n", "is no `async def`"),
        ("class handle:\n    async def __call__(self, request, ctx): ...\n", "is a class"),
        ("class H:\n    def __call__(self, request, ctx): ...\nhandle = H()\n", "is no `async def`"),
        ("class H:\n    async def __call__(self, request): ...\nhandle = H()\n", "cannot take"),
        ("from functools import partial\nasync def f(a, request, ctx): ...\nhandle = partial(f, 1, 2)\n", "cannot take"),
        ("from functools import partial\nhandle = partial(print, 1)\n", "is no `async def`"),
        ("handle = lambda request, ctx: None\n", "is no `async def`"),
        ("async def handle(request): ...\n", "cannot take"),
        ("async def handle(request, ctx, more): ...\n", "cannot take"),
        ("async def handle(*, request, ctx): ...\n", "cannot take"),
    ],
)
def test_a_function_of_another_kind_is_refused(folder: Path, text: str, reason: str) -> None:
    """It would fail at the first record otherwise."""
    (folder / "my_wrong.py").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_handler("my_wrong:handle")


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "async def handle(*args): ...\n",
        "async def handle(request, ctx, more=1): ...\n",
        "class H:\n    async def __call__(self, request, ctx): ...\nhandle = H()\n",
        "from functools import partial\nasync def f(a, request, ctx, *, b): ...\nhandle = partial(f, 1, b=2)\n",
        "from functools import partial\nclass H:\n    async def __call__(self, a, request, ctx): ...\nhandle = partial(H(), 1)\n",
        "class H:\n    async def answer(self, request, ctx): ...\nhandle = H().answer\n",
        "class H:\n    @staticmethod\n    async def f(request, ctx): ...\nhandle = H.f\n",
    ],
)
def test_what_takes_two_arguments_is_taken(folder: Path, text: str) -> None:
    """Whatever it calls them, and whatever is called: a function, an object, a method, a partial of one."""
    (folder / "my_right.py").write_text(text)
    handler = load_handler("my_right:handle")
    handler(None, None).close()  # type: ignore[arg-type, attr-defined]  # a coroutine


def test_a_method_is_reached_through_its_object(folder: Path) -> None:
    """`module:object.method`; what is not there is named."""
    (folder / "my_object.py").write_text("class H:\n    async def answer(self, request, ctx): ...\nh = H()\n")
    assert load_handler("my_object:h.answer").__name__ == "answer"
    with pytest.raises(ConfigError, match=r"'h\.other' is missing in my_object"):
        load_handler("my_object:h.other")
