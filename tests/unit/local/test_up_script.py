"""`headrace up`: the stub's script is judged before a server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.local.up import run


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scenario": "trad"}, "did you mean 'trade'"),
        ({"rules": "rules.yaml"}, "no signal is called"),
        ({"rules": "nowhere.yaml"}, "cannot be read"),
        ({"rules": "rules.yaml", "scenario": "trade"}, "both are given"),
        ({"scenario": "trade", "stub": False}, "--no-stub"),
    ],
)
def test_a_script_that_cannot_work_starts_nothing(given: dict[str, object], says: str, tmp_path: Path) -> None:
    """An unknown scenario, a wrong or missing file, both, or one without a stub: a ConfigError, and no data folder is made."""
    (tmp_path / "rules.yaml").write_text("rules: [{name: a, action: nonsense}]")
    rules = tmp_path / str(given.pop("rules")) if "rules" in given else None
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "data", rules=rules, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "data").exists()
