"""import-linter holds the directions; this holds that its lists are complete when a module is added to the engine."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: What each room may see of the engine. A new engine module is either named here or forbidden in pyproject.toml.
WEB_MAY_SEE = {
    "spec", "records", "protocols", "catalog", "preflight", "stats", "table", "verdict", "console", "numbers",
    "card", "textbook",
}  # fmt: skip
PLUGINS_MAY_SEE = {"spec", "records", "protocols", "stats", "hardware", "parts", "catalog", "numbers"}
PLUGINS = {"techniques", "runtimes", "layouts", "metrics", "models", "datasets"}


def engine_modules() -> set[str]:
    """Top-level modules and packages of the engine."""
    names = {path.stem for path in (ROOT / "experiments").glob("*.py")}
    names |= {path.parent.name for path in (ROOT / "experiments").glob("*/__init__.py")}
    return names - {"__init__", "__main__"}


def forbidden(contract_name: str) -> set[str]:
    """Engine modules that the named contract forbids."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["name"].startswith(contract_name))
    return {str(name).removeprefix("experiments.") for name in contract["forbidden_modules"]}


def test_every_engine_module_is_either_open_or_closed_to_the_web_application() -> None:
    closed = forbidden("The web application sees")
    assert not closed & WEB_MAY_SEE
    assert engine_modules() == closed | (WEB_MAY_SEE & engine_modules())


def test_every_engine_module_is_either_open_or_closed_to_plugins() -> None:
    closed = forbidden("Plugins see")
    assert not closed & PLUGINS_MAY_SEE
    assert engine_modules() - PLUGINS == closed | (PLUGINS_MAY_SEE & engine_modules())
