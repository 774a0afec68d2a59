"""Trains torchvision's resnet18 and transformers' BERT on 1 to 4 replicas and compares each run with
plain PyTorch, in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import long_training, oracle, third_party_models, training
from e2e.support.long_training import Batch
from e2e.support.oracle import Run
from e2e.support.third_party_models import bert, resnet18
from torch import Tensor, nn
from torch.nn import functional

STEPS = 25
# Not divisible by 2, 3 or 4.
ROWS = 11
SGD = {"name": "SGD", "lr": 0.005, "momentum": 0.9, "weight_decay": 1e-3}
ADAMW = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.05}
SEED = 12
# A trace accepts other lengths than that of its example; a pair does not.
LENGTHS = {"torchscript": (16, 9), "pair": (16, 16)}

# Format → suffix of its model names.
SUFFIXES = {"torchscript": "", "pair": "_pair"}

in_each_format = pytest.mark.parametrize("format", SUFFIXES)
on_replicas = pytest.mark.parametrize(
    ("format", "replicas"),
    [*(("torchscript", count) for count in (1, 2, 3, 4)), ("pair", 1), ("pair", 3)],
)


@pytest.fixture(scope="module")
def client_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[int], braid.Client]]:
    """Clients of servers with the models in both formats."""
    directory = tmp_path_factory.mktemp("foreign")
    third_party_models.export_all(directory / "models")
    third_party_models.export_pairs(directory / "models", LENGTHS["pair"][0])
    with long_training.clients_of(directory / "models", directory / "run") as get:
        yield get


def images() -> Iterator[Batch]:
    return long_training.cycle(third_party_models.image_batches(5, ROWS), STEPS)


def sentences(format: str) -> Iterator[Batch]:
    first, second = LENGTHS[format]
    batches = [
        *third_party_models.sentence_batches(3, ROWS, first),
        *third_party_models.sentence_batches(2, ROWS, second),
    ]
    return long_training.cycle(batches, STEPS)


def labelled_sentences(format: str) -> Iterator[Batch]:
    for inputs, targets in sentences(format):
        yield {**inputs, "labels": targets["target"]}, {}


def reference(module: nn.Module, batches: Iterator[Batch], optimizer: dict, loss: Callable) -> Run:
    run = long_training.in_pytorch(module, batches, optimizer, loss)
    # Checks that training changed something; otherwise equality would prove little.
    assert run.losses[-1] < 0.8 * run.losses[0]
    return run


@functools.cache
def resnet_reference(replicas: int) -> Run:
    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        outputs = oracle.forward_in_chunks(module, batch[0]["x"], replicas)
        return functional.cross_entropy(outputs, batch[1]["target"])

    return reference(resnet18(), images(), SGD, loss)


@functools.cache
def bert_reference(format: str) -> Run:
    """Uses the model's own loss, cross-entropy."""

    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        return module(**batch[0])[0]

    return reference(bert(), labelled_sentences(format), ADAMW, loss)


# The last layers are 1×1. With fewer rows per chunk, batch norm amplifies rounding errors.
@in_each_format
def test_resnet_equals_pytorch_per_chunk(
    client_of: Callable[[int], braid.Client], format: str
) -> None:
    actual = long_training.on_server(
        client_of(2), "resnet18" + SUFFIXES[format], images(), loss="cross_entropy", optimizer=SGD
    )
    oracle.assert_equal_runs(actual, resnet_reference(2), 1e-9)


# A run takes 4 to 8 s, so only some numbers of replicas are tested.
@pytest.mark.parametrize(
    ("format", "replicas"), [("torchscript", 1), ("torchscript", 4), ("pair", 3)]
)
def test_resnet_with_sync_batch_norm_equals_pytorch(
    client_of: Callable[[int], braid.Client],
    format: str,
    replicas: int,
) -> None:
    actual = long_training.on_server(
        client_of(replicas),
        "resnet18" + SUFFIXES[format],
        images(),
        loss="cross_entropy",
        optimizer=SGD,
        sync_batch_norm=True,
    )
    oracle.assert_equal_runs(actual, resnet_reference(1), 1e-9)


@on_replicas
def test_bert_equals_pytorch(
    client_of: Callable[[int], braid.Client], format: str, replicas: int
) -> None:
    actual = long_training.on_server(
        client_of(replicas),
        "bert" + SUFFIXES[format],
        sentences(format),
        loss="cross_entropy",
        optimizer=ADAMW,
    )
    oracle.assert_equal_runs(actual, bert_reference(format), 1e-9)


@on_replicas
def test_bert_with_model_loss_equals_pytorch(
    client_of: Callable[[int], braid.Client], format: str, replicas: int
) -> None:
    actual = long_training.on_server(
        client_of(replicas),
        "bert_with_loss" + SUFFIXES[format],
        labelled_sentences(format),
        loss_mode="model",
        optimizer=ADAMW,
    )
    oracle.assert_equal_runs(actual, bert_reference(format), 1e-9)


@on_replicas
def test_bert_with_dropout_equals_pytorch(
    client_of: Callable[[int], braid.Client], format: str, replicas: int
) -> None:
    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        def logits(**chunk: Tensor) -> Tensor:
            return module(**chunk)[0]

        outputs = oracle.seeded_forward_in_chunks(logits, batch[0], replicas, SEED, step)
        return functional.cross_entropy(outputs, batch[1]["target"])

    actual = long_training.on_server(
        client_of(replicas),
        "bert_with_dropout" + SUFFIXES[format],
        sentences(format),
        loss="cross_entropy",
        optimizer=ADAMW,
        seed=SEED,
    )
    wanted = reference(bert(dropout=0.1), sentences(format), ADAMW, loss)
    oracle.assert_equal_runs(actual, wanted, 1e-9)


@in_each_format
@pytest.mark.parametrize(("model", "make", "batches"), [
    ("resnet18", resnet18, third_party_models.image_batches(2, 7)),
    ("bert", bert, third_party_models.sentence_batches(2, 7, length=16)),
])
def test_published_version_is_served(
    client_of: Callable[[int], braid.Client],
    format: str,
    model: str,
    make: Callable[[], nn.Module],
    batches: list[Batch],
) -> None:
    """After one step, for any batch size."""
    client = client_of(2)
    model += SUFFIXES[format]
    module = make()
    inputs, _ = batches[1]
    (before,) = client.infer(model, inputs).values()
    with training.new_trainer(client, model, loss="cross_entropy", optimizer=SGD) as trainer:
        trainer.step(*batches[0])
        version = trainer.publish()
        try:
            (actual,) = client.infer(model, inputs).values()
        finally:
            client.rollback(model, version - 1)
        state = {name: torch.from_numpy(value) for name, value in trainer.state_dict().items()}
    # Not strict, because only a trace saves all buffers.
    assert not module.load_state_dict(state, strict=False).missing_keys
    with torch.no_grad():
        output = module.eval()(*inputs.values())
    wanted = output[0] if isinstance(output, tuple) else output
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-9)
    assert np.abs(actual - before).max() > 1e-6
