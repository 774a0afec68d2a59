"""Device of the tests in this folder: GPU 0 or, if BRAID_GPU_TESTS_ON is "cpu", the CPU, to try the
tests themselves on a machine without a GPU."""

from __future__ import annotations

import os

import pytest
import torch

ON_CPU = os.environ.get("BRAID_GPU_TESTS_ON") == "cpu"
DEVICE = "cpu" if ON_CPU else "cuda"
# One worker, and two that share the GPU.
ONE, TWO = ("cpu*1", "cpu*2") if ON_CPU else ("cuda:0", "cuda:0*2")
REPLICAS = {ONE: 1, TWO: 2}
# Rows of the batches that are trained; a dry run is content with few.
TRAINED_ROWS = [20] if ON_CPU else [20, 97, 256]
gpu_only = pytest.mark.skipif(ON_CPU, reason="needs a GPU")
several_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs that this PyTorch can use"
)
