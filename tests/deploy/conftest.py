"""Skips the tests of this folder without helm and kustomize. No test needs a cluster."""

from __future__ import annotations

import pytest

from deploy import rendering


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    for tool in (rendering.HELM, rendering.KUSTOMIZE):
        if not tool.exists():
            pytest.skip(f"no {tool.name}: run scripts/setup_deploy.sh")
