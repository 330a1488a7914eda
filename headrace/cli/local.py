"""`headrace up`, `headrace demo`, `headrace stub-llm`: what needs no broker of yours. Asks for the extra `headrace[local]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def up(
    data_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where Kafka's data and the ports stay between runs.")] = Path(".headrace"),
    docker: Annotated[bool, typer.Option("--docker", help="Kafka from the apache/kafka image instead of by pip.")] = False,
    stub: Annotated[bool, typer.Option("--stub/--no-stub", help="Also the stub LLM.")] = True,
    scenario: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the stub does: healthy (default), trade, outage or menagerie.")
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The stub's own rules; `headrace stub-llm --help` has an example.")
    ] = None,
) -> None:
    """Start Kafka, Redis and the stub LLM on loopback ports; print the exports to paste; stop all with Ctrl-C."""
    from headrace.local.up import run

    run(data_dir, docker=docker, stub=stub, rules=rules, scenario=scenario)


def demo(
    requests: Annotated[int, typer.Option(min=20, max=100_000, metavar="N", help="How many.")] = 1_000,
    workers: Annotated[int, typer.Option(min=1, max=8, metavar="N", help="Processes that run all lanes.")] = 2,
    kill: Annotated[bool, typer.Option("--kill", help="kill -9 a worker in the middle, and start another.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Which requests meet which fault.")] = 1,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep logs, requests and tables in this folder.")] = None,
) -> None:
    """The main job on a stack of its own: every request accounted for, then the time-outs replayed against a healed model.

    Reads neither HEADRACE_KAFKA_BOOTSTRAP nor HEADRACE_REDIS_URL nor OPENAI_BASE_URL. Exits 0 only if every request
    is accounted for as the script of faults foretells, 7 if not.
    """
    from headrace.local.demo import run

    raise typer.Exit(run(requests=requests, workers=workers, kill=kill, seed=seed, keep=keep))


def stub_llm(ctx: typer.Context) -> None:
    """An OpenAI-compatible server with scripted faults, on loopback; `headrace stub-llm --help` lists its options."""
    from headrace.local.stub_llm import main

    raise typer.Exit(main(ctx.args))
