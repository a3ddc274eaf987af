"""The plan that `loadtest init` writes, and the folder-independent paths of the plans that come with the package."""

from __future__ import annotations

from pathlib import Path

DEMO_PLAN = Path(__file__).with_name("demo.toml")
"""The plan of `loadtest demo`."""


def starter_plan() -> str:
    """A commented plan.toml that validates as it stands."""
    return Path(__file__).with_name("starter.toml").read_text(encoding="utf-8")
