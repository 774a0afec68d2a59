"""Evaluate: loss and metrics over batches equal PyTorch's, and the trainer does not change."""

from __future__ import annotations

from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import training, training_models
from e2e.support.models import export
from e2e.support.reference import loss_of
from e2e.support.server import Server
from e2e.support.training import classes, new_trainer, on, rows
from torch import Tensor, nn

SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}
SIZES = [11, 1, 20]
WEIGHTS = [0.5, 2.0, 0.25, 1.0, 3.0]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def batches() -> list:
    return [
        ({"x": rows(size, 10, seed=size)}, {"target": classes(size, seed=size)}) for size in SIZES
    ]


def whole() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the model's outputs for all batches, and their targets."""
    with torch.no_grad():
        outputs = training_models.make("net").eval()(torch.cat([b[0]["x"] for b in batches()]))
    return outputs, torch.cat([b[1]["target"] for b in batches()])


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize(
    "loss",
    [
        {"name": "cross_entropy"},
        {"name": "cross_entropy", "weight": WEIGHTS, "ignore_index": 3},
        {"name": "cross_entropy", "reduction": "sum"},
    ],
    ids=["mean", "weights", "sum"],
)
def test_classification_metrics_equal_pytorch(
    trainers: braid.Client, loss: dict, micro_batch: int | None, replicas: int
) -> None:
    """Results are those of one combined batch. Ignored targets do not count."""
    with new_trainer(
        trainers, "net", stages=on(replicas), loss=loss, optimizer=SGD, micro_batch=micro_batch
    ) as trainer:
        result = trainer.evaluate(batches(), metrics=["accuracy", "top_k", "confusion"], k=2)
    outputs, target = whole()
    counts = target != loss.get("ignore_index", -100)
    confusion = np.zeros((5, 5), np.int64)
    for wanted, predicted in zip(target[counts], outputs[counts].argmax(1)):
        confusion[wanted, predicted] += 1
    hits = outputs[counts].topk(2).indices == target[counts].unsqueeze(1)
    assert result.rows == sum(SIZES)
    assert result.step == 0
    assert result.loss == pytest.approx(loss_of(loss, outputs, target).item(), abs=1e-12)
    np.testing.assert_array_equal(result.confusion, confusion)
    right = (outputs.argmax(1) == target)[counts].double().mean().item()
    assert result.metrics == pytest.approx(
        {"accuracy": right, "top_k": hits.any(1).double().mean().item()}
    )
    assert 0 <= right < result.metrics["top_k"] < 1


def test_default_k_is_5(trainers: braid.Client) -> None:
    with new_trainer(trainers, "net", loss="cross_entropy", optimizer=SGD) as trainer:
        assert trainer.evaluate(batches(), metrics=["top_k"]).metrics == {"top_k": 1.0}


def test_regression_metrics_equal_pytorch(trainers: braid.Client) -> None:
    targets = [rows(size, 5, seed=size) for size in SIZES]
    given = [(batch[0], {"target": target}) for batch, target in zip(batches(), targets)]
    with new_trainer(trainers, "net", stages=on(3), loss="huber", optimizer=SGD) as trainer:
        result = trainer.evaluate(given, metrics=["mae", "mse"])
    outputs, target = whole()[0], torch.cat(targets)
    assert result.loss == pytest.approx(loss_of("huber", outputs, target).item(), abs=1e-12)
    assert result.confusion is None
    assert result.metrics == pytest.approx(
        {
            "mae": loss_of("l1", outputs, target).item(),
            "mse": loss_of("mse", outputs, target).item(),
        }
    )


@pytest.mark.parametrize(
    "loss", ["mse", "l1", "kl_div", "bce_with_logits", "cross_entropy", "classes"]
)
def test_mean_loss_is_over_all_elements_of_all_batches(tmp_path: Path, loss: str) -> None:
    """Each batch has another sequence length, so weighting batch means by rows is wrong."""
    config = """max_batch_size: 8
    input [ { name: "x" data_type: TYPE_FP64 dims: [ 3, -1 ] } ]
    output [ { name: "y" data_type: TYPE_FP64 dims: [ 3, -1 ] } ]"""
    export(tmp_path / "models/scaled", Scaled(), config=config)
    batches, outputs, targets = [], [], []
    for length in (2, 50):
        x = rows(4, 3 * length, seed=length).reshape(4, 3, length)
        target = rows(4, 3 * length, seed=length + 1).reshape(4, 3, length).softmax(1)
        target = target.argmax(1) if loss == "classes" else target
        batches.append(({"x": x}, {"target": target}))
        outputs.append((x * 0.5).movedim(1, -1).flatten(0, 1))
        targets.append(target.flatten() if loss == "classes" else target.movedim(1, -1).flatten(0, 1))
    name = "cross_entropy" if loss == "classes" else loss
    with Server(tmp_path / "models", "cpu*2", tmp_path / "server", data=False) as server:
        with braid.connect(server.address) as client:
            trainer = client.create_trainer("scaled", loss=name, optimizer=SGD)
            result = trainer.evaluate(batches, metrics=[])
    wanted = loss_of(name, torch.cat(outputs), torch.cat(targets)).item()
    assert result.loss == pytest.approx(wanted, abs=1e-12)


def test_several_losses_report_metrics_of_the_first(trainers: braid.Client) -> None:
    losses = [
        {"name": "cross_entropy", "output": "classes", "target": "labels", "factor": 2.0},
        {"name": "mse", "output": "value", "target": "wanted", "factor": 0.5},
    ]
    given = [
        ({"x": rows(n, 6)}, {"labels": classes(n, of=4), "wanted": rows(n, 1)}) for n in SIZES
    ]
    with new_trainer(trainers, "heads", stages=on(2), loss=losses, optimizer=SGD) as trainer:
        result = trainer.evaluate(given, metrics=["accuracy"])
    module = training_models.make("heads").eval()
    outputs = module(torch.cat([inputs["x"] for inputs, _ in given]))
    labels, wanted = (
        torch.cat([targets[name] for _, targets in given]) for name in ("labels", "wanted")
    )
    loss = 2 * loss_of("cross_entropy", outputs["classes"], labels)
    loss = loss + 0.5 * loss_of("mse", outputs["value"], wanted)
    assert result.loss == pytest.approx(loss.item(), abs=1e-12)
    right = (outputs["classes"].argmax(1) == labels).double().mean().item()
    assert result.metrics == pytest.approx({"accuracy": right})


def test_model_loss_equals_pytorch(trainers: braid.Client) -> None:
    given = [({"x": rows(n, 6), "labels": classes(n, of=4)}, {}) for n in SIZES]
    with new_trainer(
        trainers,
        "with_loss",
        stages=on(3),
        loss_mode="model",
        loss={"output": "losses"},
        optimizer=SGD,
    ) as trainer:
        result = trainer.evaluate(given, metrics=())
    module = training_models.make("with_loss")
    losses = [module(inputs["x"], inputs["labels"])[1] for inputs, _ in given]
    assert result.loss == pytest.approx(torch.cat(losses).mean().item(), abs=1e-12)


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("micro_batch", [None, 1, 2])
def test_scalar_model_loss_is_weighted_by_chunk_size(
    trainers: braid.Client, micro_batch: int | None, replicas: int
) -> None:
    """Each chunk's scalar is weighted by its number of rows."""
    given = [({"x": rows(n, 6), "labels": classes(n, of=4)}, {}) for n in SIZES]
    with new_trainer(
        trainers,
        "with_loss",
        stages=on(replicas),
        loss_mode="model",
        loss={"output": "loss"},
        optimizer=SGD,
        micro_batch=micro_batch,
    ) as trainer:
        result = trainer.evaluate(given, metrics=())
    module = training_models.make("with_loss")
    losses = [module(inputs["x"], inputs["labels"])[1] for inputs, _ in given]
    assert result.rows == sum(SIZES)
    assert result.loss == pytest.approx(torch.cat(losses).mean().item(), abs=1e-12)


def test_evaluation_does_not_change_the_trainer(trainers: braid.Client) -> None:
    """Covers weights, buffers, accumulated gradients, sequence numbers and dropout's next draws."""
    x, other = ({"input": rows(8, 10, seed=s)} for s in range(2))
    target = {"target": classes(8)}

    def run(evaluate: bool) -> tuple[training.Run, int]:
        with new_trainer(
            trainers, "dropout", stages=on(2), loss="cross_entropy", optimizer=SGD
        ) as trainer:
            losses = []
            for _ in range(3):
                losses.append(trainer.forward_backward(x, target).loss)
                if evaluate:
                    before = trainer.info()
                    trainer.evaluate([(other, target)] * 2)
                    assert trainer.info() == before
                losses.append(trainer.step(x, target).loss)
            return training.Run(losses, trainer.state_dict()), trainer.info().applied_sequence

    with_it, without = run(evaluate=True), run(evaluate=False)
    assert training.same_bits(with_it[0], without[0])
    assert with_it[1] == without[1] == 6


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluation_keeps_the_retained_graph(trainers: braid.Client, replicas: int) -> None:
    """Another client may evaluate while the client computes a gradient."""
    x = rows(6, 6)
    gradient = {"output__0": torch.ones(6, 4).double()}
    target = {"target": torch.zeros(6, 4).double()}
    states = []
    for evaluated in (False, True):
        with new_trainer(
            trainers, "normed", stages=on(replicas), loss="mse", optimizer=SGD
        ) as trainer:
            trainer.forward({"x": x}, keep_graph=True)
            if evaluated:
                trainer.evaluate([({"x": x * 2}, target)], metrics=[])
                with pytest.raises(braid.InvalidArgument):
                    trainer.evaluate([({"x": x}, {"target": x})], metrics=[])
            trainer.backward(gradient)
            trainer.optim_step()
            states.append(trainer.state_dict())
    training.assert_unchanged(*states)


def test_evaluation_uses_the_weights_after_earlier_steps(trainers: braid.Client) -> None:
    batch = batches()[0]
    reference = training.Reference("net", SGD, "cross_entropy")
    with new_trainer(
        trainers, "net", stages=on(2), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        for step in range(3):
            trainer.step(*batch)
            reference.step(*batch)
            result = trainer.evaluate([batch], metrics=())
            loss = reference.objective(reference.outputs(batch[0]), batch[1])
            assert result.loss == pytest.approx(loss.item(), abs=1e-9)
            assert result.step == step + 1


@pytest.mark.parametrize(
    ("metrics", "k", "field", "words"),
    [
        (["f1"], 5, "metrics[0]", ("'f1'", "accuracy", "top_k", "confusion", "mse", "mae")),
        (["accuracy", "accuracy"], 5, "metrics[1]", ("'accuracy'", "twice")),
        (["top_k"], -1, "k", ("-1", "at least 1")),
        (["mse"], 5, "metrics[0]", ("mse", "[11, 5]", "INT64 [11]")),
        (["accuracy", "mae"], 5, "metrics[1]", ("mae", "[11, 5]", "INT64 [11]")),
    ],
)
def test_unsuitable_metrics_are_rejected(
    trainers: braid.Client, metrics: list[str], k: int, field: str, words: tuple[str, ...]
) -> None:
    with new_trainer(
        trainers, "net", stages=on(2), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.evaluate(batches(), metrics=metrics, k=k)
        assert caught.value.field == field
        for word in words:
            assert word in caught.value.message
        assert trainer.evaluate(batches()).rows == sum(SIZES)


def test_accuracy_for_regression_is_rejected(trainers: braid.Client) -> None:
    given = [(batches()[0][0], {"target": rows(SIZES[0], 5)})]
    with new_trainer(trainers, "net", stages=on(2), loss="mse", optimizer=SGD) as trainer:
        with pytest.raises(braid.InvalidArgument, match="class indices, INT64") as caught:
            trainer.evaluate(given, metrics=["accuracy"])
    assert caught.value.field == "metrics[0]"


def test_invalid_second_batch_is_rejected(trainers: braid.Client) -> None:
    """The error names the second batch, and no result of the first one is kept."""
    good = batches()[0]
    with new_trainer(
        trainers, "net", stages=on(2), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        for bad, field in (
            (({"y": good[0]["x"]}, good[1]), "inputs[0].name"),
            ((good[0], {"target": good[1]["target"][:3]}), "targets[0].shape"),
            ((good[0], {}), "targets"),
        ):
            with pytest.raises(braid.InvalidArgument) as caught:
                trainer.evaluate([good, bad])
            assert caught.value.field == field
        assert trainer.evaluate([good]).rows == SIZES[0]


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("replicas", [1, 3])
def test_metrics_if_the_client_computes_the_loss(
    trainers: braid.Client, replicas: int, micro_batch: int | None
) -> None:
    """Uses the weights updated with the client's gradients. A target of -100 does not count."""
    reference = training.Reference("net", SGD, "cross_entropy")
    inputs, targets = batches()[0]
    given = batches()
    given[0][1]["target"][:3] = -100
    with new_trainer(
        trainers,
        "net",
        loss_mode="client",
        stages=on(replicas),
        optimizer=SGD,
        micro_batch=micro_batch,
    ) as trainer:
        output = torch.tensor(trainer.forward(inputs, keep_graph=True).outputs["output__0"])
        output.requires_grad_()
        loss_of("cross_entropy", output, targets["target"]).backward()
        trainer.backward({"output__0": output.grad})
        trainer.optim_step()
        reference.step(inputs, targets)
        result = trainer.evaluate(given, metrics=["accuracy", "top_k", "confusion"], k=2)
        wanted = [{"target": rows(size, 5, seed=size)} for size in SIZES]
        errors = trainer.evaluate(
            [(batch[0], target) for batch, target in zip(given, wanted)], metrics=["mse", "mae"]
        )
    with torch.no_grad():
        outputs = reference.module.eval()(torch.cat([batch[0]["x"] for batch in given]))
    target = torch.cat([batch[1]["target"] for batch in given])
    counts = target != -100
    right = (outputs.argmax(1) == target)[counts].double().mean().item()
    hits = outputs[counts].topk(2).indices == target[counts].unsqueeze(1)
    confusion = np.zeros((5, 5), np.int64)
    for expected, predicted in zip(target[counts], outputs[counts].argmax(1)):
        confusion[expected, predicted] += 1
    assert (result.loss, result.rows, result.step) == (None, sum(SIZES), 1)
    assert result.metrics == pytest.approx(
        {"accuracy": right, "top_k": hits.any(1).double().mean().item()}
    )
    np.testing.assert_array_equal(result.confusion, confusion)
    values = torch.cat([target["target"] for target in wanted])
    assert errors.loss is None
    assert errors.metrics == pytest.approx(
        {
            "mae": loss_of("l1", outputs, values).item(),
            "mse": loss_of("mse", outputs, values).item(),
        }
    )


def test_metrics_are_required_if_the_client_computes_the_loss(trainers: braid.Client) -> None:
    inputs, targets = batches()[0]
    with new_trainer(trainers, "net", loss_mode="client", optimizer=SGD) as trainer:
        with pytest.raises(braid.FailedPrecondition, match="metrics: missing.*client computes"):
            trainer.evaluate(batches(), metrics=[])
        with pytest.raises(braid.InvalidArgument, match="no metric takes a target 'y'") as caught:
            trainer.evaluate([(inputs, {"y": targets["target"]})])
        assert caught.value.field == "targets[0].name"
