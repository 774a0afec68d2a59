"""Fixtures of the tests that need a GPU that this PyTorch can use."""

from __future__ import annotations

import signal

import pytest
import torch

from gpu.target import ON_CPU, ONE, TWO

# So that fixtures stop their servers when scripts/gpu_check.sh ends a stage.
signal.signal(signal.SIGTERM, signal.default_int_handler)
if torch.cuda.is_available() and not ON_CPU:
    # The servers leave the cores to PyTorch, which computes what is expected.
    torch.set_num_threads(4)


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    if not ON_CPU and not torch.cuda.is_available():
        pytest.skip("no GPU: torch.cuda.is_available() is false")


@pytest.fixture(scope="module", params=[TWO] if ON_CPU else [ONE, TWO])
def devices(request: pytest.FixtureRequest) -> str:
    return request.param
