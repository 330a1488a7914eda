"""`docs/cli.md`, made of the command line itself: `python -m tests.support.cli_reference > docs/cli.md`."""

from __future__ import annotations

import argparse
import enum
import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any

import typer.main

from headrace.cli import COMMANDS, build, unwrapped
from headrace.local.stub_llm import _parser

HEAD = """# Command line

<!-- Made by `python -m tests.support.cli_reference`; a test holds it to the code. -->

Results go to stdout, progress and logs to stderr. `--json` gives a JSON object a line. What alters or repeats in bulk is a dry run until
`--execute`. Every command reads the [configuration](environment.md) and answers with one of the [exit codes](exit-codes.md). `--help`
after any of them says the same as this page.

`headrace --version` prints the version.
"""


def reference() -> str:
    """The page."""
    return HEAD + "".join(_section(name) for name in COMMANDS)


def _section(name: str) -> str:
    if name == "stub-llm":
        return _of_parser(_parser())
    group: Any = typer.main.get_command(build(name))
    command = group.commands[name]
    if not hasattr(command, "commands"):
        return _of_command(name, command, 2)
    parts = [f"\n## headrace {name}\n\n{unwrapped(command.help)}\n"]
    parts += [_of_command(f"{name} {one}", inner, 3) for one, inner in command.commands.items()]
    return "".join(parts)


def _of_command(path: str, command: Any, level: int) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option" and parameter.name != "help"]
    usage = " ".join(["headrace", path, *("[OPTIONS]" if options else "",), *(_metavar(one) for one in arguments)])
    text = (
        f"\n{'#' * level} headrace {path}\n\n```text\n{' '.join(usage.split())}\n```\n\n{unwrapped(inspect.cleandoc(command.help or ''))}\n"
    )
    if arguments:
        text += "\n| argument | |\n|---|---|\n" + "".join(f"| `{_metavar(one)}` | {_cell(one.help)} |\n" for one in arguments)
    if options:
        text += "\n| option | default | |\n|---|---|---|\n" + "".join(_option(one) for one in options)
    return text


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return f"{name}…" if argument.nargs == -1 else name


def _option(option: Any) -> str:
    names = "/".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or _choices(option)}"
    default = option.default() if callable(option.default) else option.default
    shown = "" if default in (None, False, (), []) or (option.is_flag and default is not True) else f"`{default}`"
    if option.is_flag and default is True:
        shown = f"`{option.opts[0]}`"
    return f"| `{names}{value}` | {shown} | {_cell(option.help)} |\n"


def _choices(option: Any) -> str:
    """What a value may be: the literals or the members of an enumeration, else the name of its type."""
    annotation = option.type_descriptor.annotation
    inner = [one for one in typing.get_args(annotation) if one is not type(None)]
    if typing.get_origin(annotation) is not typing.Literal and inner:
        annotation = inner[0]
    names = typing.get_args(annotation) or (tuple(annotation) if isinstance(annotation, enum.EnumMeta) else (annotation.__name__.upper(),))
    return "\\|".join(str(getattr(name, "value", name)) for name in names)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _of_parser(parser: argparse.ArgumentParser) -> str:
    text = f"\n## headrace stub-llm\n\n```text\nheadrace stub-llm [OPTIONS]\n```\n\n{parser.description} See [its own page](stub-llm.md).\n"
    return text + "\n| option | default | |\n|---|---|---|\n" + "".join(_actions(parser))


def _actions(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.dest != "help":
            shown = (action.help or "").replace("; default: %(default)s", "").replace(" (default: %(default)s)", "")
            default = "" if action.default in (None, argparse.SUPPRESS) else f"`{action.default}`"
            yield f"| `{'/'.join(action.option_strings)} {action.metavar or ''}` | {default} | {_cell(shown)} |\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
