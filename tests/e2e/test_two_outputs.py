"""A model that returns logits and probabilities, trained on the logits: 50 steps on 1 to 4 replicas
equal plain PyTorch, and the probabilities are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import long_training, models, oracle, training
from e2e.support.long_training import Batch
from e2e.support.server import Server
from torch import Tensor, nn
from torch.nn import functional

STEPS = 50
# Not divisible by 2, 3 or 4.
ROWS = 23
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}


def batches() -> Iterator[Batch]:
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(8))
    return long_training.cycle([({"x": x}, {"target": x[:, :4].argmax(1)})], STEPS)


def loss_of_logits(module: nn.Module, step: int, batch: Batch) -> Tensor:
    logits, _ = module(batch[0]["x"])
    return functional.cross_entropy(logits, batch[1]["target"])


# The first output is the default.
@pytest.mark.parametrize("spec", [{}, {"output": "output__0"}], ids=["default", "by_name"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_training_on_the_logits_equals_pytorch(
    serve: Callable[..., Server], format: str, replicas: int, spec: dict
) -> None:
    wanted = long_training.in_pytorch(models.make("two_outputs"), batches(), SGD, loss_of_logits)
    # Checks that training changed something; otherwise equality would prove little.
    assert wanted.losses[-1] < 0.5 * wanted.losses[0]
    with braid.connect(serve(f"cpu*{replicas}", format).address) as client:
        loss = {"name": "cross_entropy", **spec}
        actual = long_training.on_server(client, "two_outputs", batches(), loss=loss, optimizer=SGD)
    oracle.assert_equal_runs(actual, wanted, 1e-5)


def test_probabilities_of_a_trained_model(serve: Callable[..., Server], format: str) -> None:
    module = models.make("two_outputs")
    wanted = long_training.in_pytorch(module, batches(), SGD, loss_of_logits)
    inputs, _ = next(batches())
    with braid.connect(serve("cpu*3", format).address) as client:
        with training.new_trainer(
            client, "two_outputs", loss="cross_entropy", optimizer=SGD
        ) as trainer:
            for batch in batches():
                result = trainer.step(*batch)
            assert result.step == len(wanted.losses)
            outputs = trainer.forward(inputs, mode="eval").outputs
    with torch.no_grad():
        logits, probabilities = module(inputs["x"])
    np.testing.assert_allclose(outputs["output__0"], logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(outputs["output__1"], probabilities, rtol=0, atol=1e-5)
