"""The tests here need a GPU that this PyTorch can use."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU: torch.cuda.is_available() is false")


# One replica, and two that share the GPU.
@pytest.fixture(scope="module", params=["cuda:0", "cuda:0*2"])
def devices(request: pytest.FixtureRequest) -> str:
    return request.param
