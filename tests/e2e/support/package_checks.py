"""What a package that is only run, of the model `aoti_models.mixed`, has to do whatever its kind."""

from __future__ import annotations

import braid
import numpy as np
import pytest
from e2e.support import aoti_models
from e2e.support.inference import assert_close, expected


def batch(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    x = generator.standard_normal((rows, 10)).astype(np.float32)
    return x, generator.integers(0, 20, rows)


def assert_gives_pytorchs_outputs(
    client: braid.Client, model: str, names: tuple[str, str], rows: int
) -> None:
    inputs = batch(rows)
    wanted = expected(aoti_models.mixed(), *inputs)
    outputs = client.infer(model, dict(zip(names, inputs)))
    assert outputs.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(outputs[name], value)


def assert_refuses_other_inputs(client: braid.Client, model: str, names: tuple[str, str]) -> None:
    x, words = batch(4)
    with pytest.raises(braid.InvalidArgument, match="10"):
        client.infer(model, {names[0]: x[:, :9].copy(), names[1]: words})
    with pytest.raises(braid.InvalidArgument, match="FP32"):
        client.infer(model, {names[0]: x.astype(np.float64), names[1]: words})


def assert_cannot_be_trained(client: braid.Client, model: str, words: str) -> None:
    with pytest.raises(braid.FailedPrecondition, match=words):
        client.create_trainer(
            model,
            loss={"name": "mse", "output": "hidden"},
            optimizer={"name": "SGD", "lr": 0.1},
        )


def assert_unavailable(client: braid.Client, model: str, words: str) -> None:
    (status,) = [status for status in client.models() if status.name == model]
    assert status.state == "UNAVAILABLE"
    assert words in status.reason
