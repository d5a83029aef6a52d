"""Privileged tests: run as root, or skipped with the reason."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `privileged` where this process is not root."""
    if os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason="needs root; run them with `sudo .venv/bin/python -m pytest -m privileged`")
    for item in items:
        if item.get_closest_marker("privileged"):
            item.add_marker(skip)
