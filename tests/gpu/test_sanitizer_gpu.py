"""compute-sanitizer watches a server that serves and trains."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server

from gpu.target import ONE, gpu_only

SGD = {"name": "SGD", "lr": 0.05}

class SanitizedServer(Server):
    """A server that compute-sanitizer starts. The exit code is 99 if that found an error."""

    def __init__(self, program: str, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._command[:0] = [program, "--target-processes=all", "--error-exitcode=99"]

    def terminate(self) -> None:
        os.kill(self.ready["pid"], signal.SIGTERM)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None and self.ready:
            os.kill(self.ready["pid"], signal.SIGKILL)
        super().kill()


@gpu_only
def test_compute_sanitizer_finds_no_errors(tmp_path: Path) -> None:
    folders = f"{os.environ['PATH']}:/usr/local/cuda/bin"
    program = shutil.which("compute-sanitizer", path=folders)
    if program is None:
        pytest.skip("no compute-sanitizer on PATH or in /usr/local/cuda/bin")
    models.export(
        tmp_path / "models/chain64",
        models.make("chain64"),
        inputs=[torch.zeros(1, 10, dtype=torch.float64)],
    )
    x = np.random.default_rng(0).standard_normal((33, 10))
    target = np.zeros((33, 5))
    with SanitizedServer(program, tmp_path / "models", ONE, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            (output,) = client.infer("chain64", {"x": x}).values()
            trainer = client.create_trainer("chain64", loss="mse", optimizer=SGD)
            trainer.step({"x": x}, {"target": target})
    assert_close(output, expected(models.make("chain64"), x), rtol=1e-9, atol=1e-9)
