"""The longer explorations run only when they are asked for: ``pytest -m slow tests/exploration``."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked slow in this directory unless ``-m`` speaks of it."""
    if "slow" in config.getoption("-m"):
        return
    here = Path(__file__).parent
    slow = [item for item in items if here in item.path.parents and item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
