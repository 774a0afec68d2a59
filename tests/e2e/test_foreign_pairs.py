"""Trains and serves exported pairs of torchvision's models and compares them with plain PyTorch.
test_models_nobody_wrote.py has resnet18 and BERT, test_public_models.py pairs of other kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import long_training, oracle, third_party_pairs, training

STEPS = 25
SEEDS = (7, 7, 8)


@pytest.fixture(scope="module")
def client_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[int], braid.Client]]:
    directory = tmp_path_factory.mktemp("foreign_pairs")
    for name, dropout in (("mobilenet_v3_small", 0.0), ("small_vit", 0.0), ("small_vit", 0.2)):
        third_party_pairs.export(directory / "models", name, dropout)
    with long_training.clients_of(directory / "models", directory / "run") as get:
        yield get


@pytest.mark.parametrize(
    ("name", "replicas"), [("mobilenet_v3_small", 3), ("small_vit", 1), ("small_vit", 4)]
)
def test_training_equals_pytorch(
    client_of: Callable[[int], braid.Client], name: str, replicas: int
) -> None:
    wanted = third_party_pairs.in_pytorch(name, STEPS)
    # Checks that training changed something; otherwise equality would prove little.
    assert wanted.losses[-1] < 0.8 * wanted.losses[0]
    actual = third_party_pairs.on_server(client_of(replicas), name, STEPS)
    oracle.assert_equal_runs(actual, wanted, 1e-9)


# Batches of 333 rows are split.
@pytest.mark.parametrize("rows", [1, 7, 333])
def test_outputs_equal_pytorch(client_of: Callable[[int], braid.Client], rows: int) -> None:
    recipe = third_party_pairs.RECIPES["mobilenet_v3_small"]
    ((inputs, _),) = recipe.batches(1, rows)
    (actual,) = client_of(3).infer("mobilenet_v3_small", inputs).values()
    with torch.no_grad():
        wanted = recipe.make(0.0).eval()(**inputs)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-9)


def test_dropout_is_reproducible_with_a_seed(client_of: Callable[[int], braid.Client]) -> None:
    """The result is equal bit for bit. Another seed drops other elements."""
    first, again, other = (
        third_party_pairs.on_server(
            client_of(3), "small_vit", STEPS, "small_vit_with_dropout", seed=seed
        )
        for seed in SEEDS
    )
    assert training.same_bits(first, again)
    # The head starts at zero, so the first loss does not depend on dropout.
    assert first.losses[1] != other.losses[1]
