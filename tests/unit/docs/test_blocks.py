"""What can be said of the documentation's blocks without running them."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headrace.config import Settings
from headrace.loading import load
from headrace.local.stub import parse_rules
from headrace.topics.file import names_in
from tests.support.pages import DOCS, SHELL, Block, Page, pages, read

LANGUAGES = SHELL | {"text", "python", "yaml", "json", "toml", "ini", "promql", "properties", "dockerfile", "java", "mermaid"}
FOREIGN = {"apiVersion", "services", "scrape_configs", "groups", "route", "receivers"}  # Kubernetes, compose, Prometheus, its alerts


def blocks(*languages: str) -> list[Any]:
    """Every block in these languages, as parameters named by page and line."""
    return [
        pytest.param(page, block, id=f"{page.name}:{block.line}")
        for page in pages()
        for block in page.blocks
        if block.language in languages
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Page) -> None:
    """A fence names a language we know, so that no command can hide from being run; what is not run says why."""
    assert [(block.line, block.language) for block in page.blocks if block.language not in LANGUAGES] == []
    silent = [block.line for block in page.blocks if block.mark("not run") is not None and len(block.mark("not run") or "") < 10]
    assert silent == [], "`<!-- not run: … -->` without a reason"


def test_what_is_not_run_is_little() -> None:
    """Of all shell blocks that a bare machine could run, at most a third is excused."""
    shell = [block for page in pages() for block in page.blocks if block.language in SHELL]
    excused = [block for block in shell if block.mark("not run") is not None]
    outside = [block for block in excused if "needs" in (block.mark("not run") or "")]
    assert len(excused) - len(outside) <= len(shell) / 3


@pytest.mark.parametrize(("page", "block"), blocks("python"))
def test_python_compiles_and_what_it_imports_exists(page: Page, block: Block, tmp_path: Path) -> None:
    """Every name it imports from a module that is installed is there; a module of the page's own is a block of the page."""
    own = {Path(other.file).with_suffix("").as_posix().replace("/", ".") for other in page.blocks if other.file}
    tree = ast.parse(block.text, f"{page.name}:{block.line}")
    for module, name in _imports(tree):
        if module.split(".")[0] not in {one.split(".")[0] for one in own}:
            found = importlib.import_module(module)
            assert name is None or hasattr(found, name) or importlib.import_module(f"{module}.{name}"), f"{module}.{name}"


def _imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize(("page", "block"), blocks("yaml"))
def test_yaml_is_taken_by_what_it_is_for(page: Page, block: Block, tmp_path: Path) -> None:
    """`headrace.yaml` passes its model, `topics.yaml` its own, rules the stub's; anything else is another tool's and is YAML."""
    documents = [document for document in yaml.safe_load_all(block.text) if document is not None]
    keys = {key for document in documents if isinstance(document, Mapping) for key in document}
    if block.mark("not run") is not None or keys & FOREIGN:
        return
    if keys & {"rules"}:
        assert parse_rules(documents[0])
    elif keys & {"topics", "replication"}:
        (tmp_path / "topics.yaml").write_text(block.text)
        names_in(tmp_path / "topics.yaml")
    else:
        assert keys & set(Settings.model_fields), f"{page.name}:{block.line}: whose file is it? Its first line may name it"
        (tmp_path / "headrace.yaml").write_text(block.text)
        load(_every_variable(documents[0], tmp_path), tmp_path / "headrace.yaml")


def _every_variable(value: Any, folder: Path) -> dict[str, str]:
    """A value for each variable the file names, and a file for each file."""
    found: dict[str, str] = {}
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(name, str) and name.endswith("_env") and isinstance(inner, str):
            found[inner] = "a-key"
        found |= _every_variable(inner, folder)
    for inner in value if isinstance(value, list) else ():
        found |= _every_variable(inner, folder)
    return found


@pytest.mark.parametrize(("page", "block"), blocks("json"))
def test_json_decodes(page: Page, block: Block) -> None:
    """As one document, or a line at a time."""
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


def test_requests_and_results_of_the_record_page_fit_their_schemas() -> None:
    """What the page shows as a request or a result is one."""
    for block in read(DOCS / "records.md").blocks:
        if block.language == "json":
            shown = json.loads(block.text)
            name = "result" if "status" in shown else "request"
            jsonschema.Draft202012Validator(json.loads((DOCS / "schemas" / f"{name}.schema.json").read_text("utf-8"))).validate(shown)


def test_schemas_are_json() -> None:
    """Each published schema decodes."""
    assert [json.loads(path.read_text("utf-8"))["$schema"] for path in sorted((DOCS / "schemas").glob("*.json"))]
