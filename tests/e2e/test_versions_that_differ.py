"""Versions of one model with different code are served independently."""

from __future__ import annotations

from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from braid import BraidError
from e2e.support import models
from e2e.support.inference import infer, outputs_of
from e2e.support.model_control import explicit
from e2e.support.server import Server
from torch import Tensor, nn

CONFIG = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
WORDS_CONFIG = """
max_batch_size: 8
input [ { name: "words" data_type: TYPE_INT64 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3, 2 ] } ]
"""
X = np.ones((2, 2), np.float32)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, scale: float = 3.0) -> Tensor:
        return x * scale * self.weight


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * 10.0 * self.weight


class Words(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.embedding(words)


def ask(client: triton.InferenceServerClient, **parameters: float) -> float:
    result = infer(client, "m", {"x": X}, parameters=parameters)
    (values,) = outputs_of(result).values()
    return float(values[0, 0])


@pytest.mark.parametrize("older, newer", [(Scaled, Plain), (Plain, Scaled)])
def test_rollback_to_other_number_arguments(
    tmp_path: Path, older: type[nn.Module], newer: type[nn.Module]
) -> None:
    """Both versions are called with their own arguments, in either order."""
    models.export(tmp_path / "models/m", older(), config=CONFIG, version=1)
    models.export(tmp_path / "models/m", newer(), config=CONFIG, version=2)
    served = {Scaled: 3.0, Plain: 10.0}

    def check(module: type[nn.Module]) -> None:
        assert ask(stock) == served[module]
        assert ask(stock, scale=5.0) == (5.0 if module is Scaled else 10.0)

    with Server(tmp_path / "models", "cpu*2", tmp_path / "run") as server:
        with braid.connect(server.address) as client, triton.InferenceServerClient(
            server.address
        ) as stock:
            check(newer)
            assert client.rollback("m", 1) == 2
            check(older)
            assert client.rollback("m", 2) == 1
            check(newer)


def test_index_range_belongs_to_the_version(tmp_path: Path) -> None:
    """Indices of a smaller embedding are bounded by its own size; a larger one is usable as a
    whole."""
    for version, words in ((1, 10), (2, 100), (3, 20)):
        models.export(tmp_path / "models/m", Words(words), config=WORDS_CONFIG, version=version)
    with Server(tmp_path / "models", "cpu*2", tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            for version, words in ((3, 20), (1, 10), (2, 100), (3, 20)):
                client.rollback("m", version)
                client.infer("m", {"words": np.full((1, 3), words - 1)})
                with pytest.raises(BraidError, match=f"0 to {words - 1}"):
                    client.infer("m", {"words": np.full((1, 3), words)})


def test_publication_for_another_configuration_is_rejected(tmp_path: Path) -> None:
    """The trainer continues, and publishes once its configuration is loaded again."""
    models.export(tmp_path / "models/m", Plain(), config=CONFIG, version=1)
    with explicit(tmp_path, "--load_model=m") as running:
        with braid.connect(running.server.address) as client:
            trainer = client.create_trainer(
                "m", name="t", loss="mse", optimizer={"name": "SGD", "lr": 0.001}
            )
            trainer.step({"x": X}, {"target": np.zeros((2, 2), np.float32)})
            other = CONFIG.replace('"x"', '"z"')
            (tmp_path / "models/m/config.pbtxt").write_text(other)
            running.client.load_model("m")
            with pytest.raises(BraidError, match="incompatible configuration.*'z'.*'x'"):
                trainer.publish()
            (values,) = client.infer("m", {"z": X}).values()
            assert values[0, 0] == 10
            trainer.step({"x": X}, {"target": np.zeros((2, 2), np.float32)})
            # The larger batches belong to the configuration that is loaded now.
            (tmp_path / "models/m/config.pbtxt").write_text(CONFIG.replace("8", "16"))
            running.client.load_model("m")
            assert trainer.publish() == 2
            (values,) = client.infer("m", {"x": X}).values()
            assert values[0, 0] < 10
            assert running.client.get_model_config("m").config.max_batch_size == 16
