"""Losses with their options: one step on three replicas is one step of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
from e2e import models, oracle, training
from e2e.server import Server
from torch import Tensor
from torch.nn import functional

ROWS = 20
SGD = {"name": "SGD", "lr": 0.1}


@pytest.fixture(scope="module")
def client(serve: Callable[[str], Server]) -> Iterator[braid.Client]:
    with braid.connect(serve("cpu*3").address) as client:
        yield client


def classes(count: int) -> Tensor:
    return torch.randint(count, (ROWS,), generator=torch.Generator().manual_seed(3))


def classes_to_ignore(marker: int) -> Tensor:
    """The first chunk has nothing that counts, and the others all but one."""
    target = classes(5)
    target[:8] = marker
    return target


def probabilities() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(ROWS, 5, generator=generator, dtype=torch.float64).softmax(1)


@pytest.mark.parametrize(
    ("name", "options", "target"),
    [
        ("cross_entropy", {}, classes(5)),
        ("cross_entropy", {"reduction": "sum"}, classes(5)),
        ("cross_entropy", {"label_smoothing": 0.1}, classes(5)),
        ("cross_entropy", {}, classes_to_ignore(-100)),
        ("cross_entropy", {"ignore_index": 2}, classes_to_ignore(2)),
        ("cross_entropy", {}, probabilities()),
        ("cross_entropy", {"label_smoothing": 0.2, "reduction": "sum"}, probabilities()),
        ("mse", {}, probabilities()),
        ("mse", {"reduction": "sum"}, probabilities()),
    ],
)
def test_one_step_equals_pytorch(
    client: braid.Client, name: str, options: dict, target: Tensor
) -> None:
    x = oracle.dataset("chain64", ROWS)[0]
    module = models.make("chain64")
    loss = oracle.LOSSES[name](module(x), target, **options)
    loss.backward()
    oracle.make_optimizer(module, SGD).step()
    with training.new_trainer(
        client, "chain64", loss={"name": name, **options}, optimizer=SGD
    ) as trainer:
        result = trainer.step({"x": x}, {"target": target})
        actual = oracle.Run([result.loss], trainer.state_dict())
    oracle.assert_equal_runs(actual, oracle.Run([loss.item()], oracle.state_of(module)), 1e-12)


@pytest.mark.parametrize(("output", "index"), [(None, 0), ("output__0", 0), ("output__1", 1)])
def test_loss_takes_the_output_that_it_names(
    client: braid.Client, output: str | None, index: int
) -> None:
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(5))
    target = torch.full((ROWS, 4), 0.25)
    module = models.make("two_outputs")
    loss = functional.mse_loss(module(x)[index], target)
    loss.backward()
    oracle.make_optimizer(module, SGD).step()
    spec = {"name": "mse", "target": "wanted", **({"output": output} if output else {})}
    with training.new_trainer(client, "two_outputs", loss=spec, optimizer=SGD) as trainer:
        result = trainer.step({"x": x}, {"wanted": target})
        state = trainer.state_dict()
    assert result.loss == pytest.approx(loss.item(), abs=1e-6)
    for name, value in oracle.state_of(module).items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)


def test_embedding_of_one_index_a_row_trains(client: braid.Client) -> None:
    words = torch.tensor([5, 7, 5, 999, 0, 5])
    target = torch.arange(30.0).reshape(6, 5) / 30
    module = models.make("words")
    loss = functional.mse_loss(module(words), target)
    loss.backward()
    oracle.make_optimizer(module, SGD).step()
    with training.new_trainer(client, "words", loss="mse", optimizer=SGD) as trainer:
        result = trainer.step({"words": words}, {"target": target}, report_split=True)
        state = trainer.state_dict()
    assert [chunk.rows for chunk in result.chunks] == [2, 2, 2]
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    for name, value in oracle.state_of(module).items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)
