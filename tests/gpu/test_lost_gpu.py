"""After a GPU fails, its requests fail, and the server runs until SIGTERM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models
from e2e.support.server import Server
from torch import Tensor, nn

from gpu.target import ONE, TWO, gpu_only, several_gpus

pytestmark = gpu_only

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
CALL_SECONDS = 60
SEVERAL = pytest.param("cuda", marks=several_gpus)


class WritesOutOfBounds(nn.Module):
    """Writes where its input says; the CUDA kernel does not check it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch._convert_indices_from_coo_to_csr(x, 4)


WRITES_CONFIG = """
input [ { name: "x" data_type: TYPE_INT64 dims: [ 2 ] } ]
output [ { name: "output__0" data_type: TYPE_INT64 dims: [ 5 ] } ]
"""


def test_lost_gpu_does_not_abort_the_server(tmp_path: Path) -> None:
    """Requests in flight fail, too, and memory that the GPU was copying is freed."""
    example = [torch.zeros(1, dtype=torch.int64)]
    models.export(tmp_path / "models/words", models.make("waiting_words"), inputs=example)
    server = Server(tmp_path / "models", TWO, tmp_path / "run", data=False)
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:

            def ask(word: int) -> type | None:
                try:
                    client.infer("words", {"words": np.full(1000, word)})
                except braid.BraidError as error:
                    return type(error)
                return None

            assert ask(3) is None
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(ask, [3] * 20 + [1000] + [3] * 20))
            assert answers[20] is braid.Unavailable
            assert set(answers) <= {None, braid.Unavailable}
            assert ask(3) is braid.Unavailable
        server.terminate()
        # A signal's number is negative.
        assert server.wait() >= 0, server.log
        assert "is lost" in server.log
    finally:
        server.kill()


def test_illegal_memory_access_makes_the_server_unhealthy(tmp_path: Path) -> None:
    """Not the error of the request that caused it: nothing runs on the GPU afterwards."""
    models.export(tmp_path / "models/writes", WritesOutOfBounds(), config=WRITES_CONFIG)
    server = Server(tmp_path / "models", ONE, tmp_path / "run", data=False)
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:
            (output,) = client.infer("writes", {"x": np.array([0, 1])}).values()
            assert output.tolist() == [0, 1, 2, 2, 2]
            with pytest.raises(braid.Unavailable, match="cuda:0"):
                client.infer("writes", {"x": np.full(2, 1 << 40)})
            assert not client.is_ready()
            with pytest.raises(braid.Unavailable, match="cuda:0"):
                client.infer("writes", {"x": np.array([0, 1])})
        server.terminate()
        assert server.wait() >= 0, server.log
    finally:
        server.kill()


@pytest.mark.parametrize("devices", [ONE, SEVERAL])
def test_trainer_on_a_lost_gpu_is_rejected(tmp_path: Path, devices: str) -> None:
    """On several GPUs, its communicators cannot be created either."""
    example = [torch.zeros(1, dtype=torch.int64)]
    models.export(tmp_path / "models/words", models.make("waiting_words"), inputs=example)
    server = Server(tmp_path / "models", devices, tmp_path / "run")
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:
            with pytest.raises(braid.Unavailable):
                client.infer("words", {"words": np.full(64, 1000)})
            with pytest.raises(braid.Unavailable):
                client.create_trainer("words", loss="cross_entropy", optimizer=SGD)
            assert server.process.poll() is None, server.log
    finally:
        server.kill()


@several_gpus
def test_lost_gpu_fails_the_training_step_on_all_gpus(tmp_path: Path) -> None:
    """The last row's word does not exist, and only the last GPU sees it."""
    example = [torch.zeros(1, dtype=torch.int64)]
    models.export(tmp_path / "models/words", models.make("waiting_words"), inputs=example)
    server = Server(tmp_path / "models", "cuda:0,cuda:1", tmp_path / "run")
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:
            trainer = client.create_trainer("words", loss="cross_entropy", optimizer=SGD)
            words, target = np.zeros(64, np.int64), np.zeros(64, np.int64)
            for _ in range(5):
                trainer.step({"words": words}, {"target": target})
            words[-1] = 1000
            with pytest.raises(braid.Unavailable, match="cuda:1"):
                trainer.step({"words": words}, {"target": target})
            assert not client.is_ready()
    finally:
        server.kill()
