"""The documentation as a site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.pages import DOCS, ROOT

FETCHES = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}


class _Fetched(HTMLParser):
    """What a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in FETCHES and (tag != "link" or given.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}):
            self.found.append(given.get(FETCHES[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    return folder


def test_it_builds_without_a_warning(site: Path) -> None:
    """Strictly: no link or anchor leads nowhere, no page is left out of the navigation, and none is missing."""
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert [page for page in sorted(pages) if not (site / page).is_file()] == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No font, script, style or picture of a built page comes from another server: it can be read without a network."""
    outside: set[tuple[str, str]] = set()
    for path in site.rglob("*.html"):
        parser = _Fetched()
        parser.feed(path.read_text("utf-8"))
        outside |= {(path.name, url) for url in parser.found if re.match(r"(?:\w+:)?//", url)}
    for path in site.rglob("*.css"):
        outside |= {(path.name, url) for url in re.findall(r"url\([\"']?((?:https?:)?//[^)\"']+)", path.read_text("utf-8"))}
    assert outside == set()


def test_the_drawings_keep_inside_the_sites_colours(site: Path) -> None:
    """A drawing names no colour of its own, so that it can be read in light and in dark."""
    drawings = [
        found
        for path in site.rglob("*.html")
        for found in re.findall(r"<svg viewBox=\"0 0 880.*?</svg>", path.read_text("utf-8"), re.DOTALL)
    ]
    assert len(drawings) >= 2
    assert [drawing[:80] for drawing in drawings if re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(|(?:fill|stroke)=", drawing)] == []
