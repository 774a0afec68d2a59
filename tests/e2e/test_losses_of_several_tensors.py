"""Losses of several outputs or targets, and losses that PyTorch has in other packages or not at all,
equal the reference on three replicas and in micro-batches."""

from __future__ import annotations

import braid
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference, loss_of
from e2e.support.training import classes, new_trainer, on, rows
from torch import Tensor

ROWS = 7
SGD = {"name": "SGD", "lr": 0.1}
EMBEDDINGS = {"outputs": ["left", "right"]}
TRIPLET = {"name": "triplet_margin", "outputs": ["left", "right", "other"]}
PARTS = [
    pytest.param({}, id="central"),
    pytest.param({"loss_mode": "per_replica"}, id="per_replica"),
    pytest.param({"micro_batch": 2}, id="micro_batch"),
    pytest.param({"loss_mode": "per_replica", "micro_batch": 2}, id="both"),
]


def pixels(ignored: int = -100) -> Tensor:
    """Class indices of 4 cells. Those of the first chunk's rows are ignored, and some others."""
    labels = classes(ROWS, 4, of=3)
    labels[:3] = ignored
    labels[4, 1:3] = ignored
    return labels


def masks() -> Tensor:
    return (rows(ROWS, 3, 4, seed=5) > 0.3).double()


def signs() -> Tensor:
    return torch.tensor([1, -1, -1, 1, 1, -1, 1])


def sequences() -> dict[str, Tensor]:
    """Targets of CTC. Elements beyond a row's length are no classes."""
    tokens = 1 + classes(ROWS, 2, of=3)
    lengths = torch.tensor([2, 1, 0, 2, 1, 2, 1])
    tokens[torch.arange(2) >= lengths.unsqueeze(1)] = -1
    return {"target": tokens, "target_lengths": lengths}



STEPS = {"steps": torch.tensor([5, 4, 3, 5, 2, 5, 4])}
# Model, loss, targets.
CASES = [
    ("net", {"name": "poisson_nll"}, {"target": rows(ROWS, 5, seed=2).abs()}),
    ("net", {"name": "poisson_nll", "full": True}, {"target": 4 * rows(ROWS, 5, seed=2).abs()}),
    ("towers", {"name": "poisson_nll", "output": "spread", "log_input": False, "eps": 1e-3},
     {"target": rows(ROWS, 4, seed=2).abs()}),
    ("towers", {"name": "gaussian_nll", "outputs": ["left", "spread"]},
     {"target": rows(ROWS, 4, seed=3)}),
    ("towers", {"name": "gaussian_nll", "outputs": ["left", "spread"], "full": True, "eps": 0.7},
     {"target": rows(ROWS, 4, seed=3)}),
    ("net", {"name": "focal", "weight": [0.5, 2.0, 0.0, 1.0, 3.0]}, {"target": classes(ROWS)}),
    ("cells", {"name": "focal", "gamma": 0.5}, {"target": pixels()}),
    ("cells", {"name": "focal", "gamma": 1.5, "ignore_index": 7, "weight": [1.0, 2.0, 0.5]},
     {"target": pixels(7)}),
    ("cells", {"name": "sigmoid_focal"}, {"target": masks()}),
    ("cells", {"name": "sigmoid_focal", "alpha": -1, "gamma": 1}, {"target": masks()}),
    ("cells", {"name": "dice"}, {"target": pixels()}),
    ("cells", {"name": "dice", "smooth": 0.1}, {"target": masks()}),
    ("towers", {"name": "cosine_embedding", **EMBEDDINGS}, {"target": signs()}),
    ("towers", {"name": "cosine_embedding", **EMBEDDINGS, "margin": 0.5},
     {"target": signs().double()}),
    ("towers", TRIPLET, {}),
    ("towers", {**TRIPLET, "margin": 0.3, "p": 1, "eps": 1e-3, "swap": True}, {}),
    ("frames", {"name": "ctc", "zero_infinity": True}, sequences()),
    ("frames", {"name": "ctc", "input_lengths": "steps", "zero_infinity": True},
     {**sequences(), **STEPS}),
]  # fmt: skip


def inputs_of(model: str, count: int = ROWS, seed: int = 0) -> dict[str, Tensor]:
    shape = {"net": (10,), "frames": (5, 6)}.get(model, (6,))
    return {"x": rows(count, *shape, seed=seed)}


@pytest.mark.parametrize("options", PARTS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("model", "loss", "targets"),
    CASES,
    ids=["-".join([loss["name"], *list(loss)[1:]]) for _, loss, _ in CASES],
)
def test_loss_equals_the_reference(
    trainers: braid.Client,
    model: str,
    loss: dict,
    targets: dict[str, Tensor],
    reduction: str,
    options: dict,
) -> None:
    training.compare(
        trainers,
        model,
        [(inputs_of(model), targets)],
        SGD,
        {**loss, "reduction": reduction},
        tolerance=1e-11,
        **options,
    )


@pytest.mark.parametrize("mode", ["central", "per_replica"])
def test_losses_with_different_targets_add_up(trainers: braid.Client, mode: str) -> None:
    losses = [
        {"name": "cosine_embedding", **EMBEDDINGS, "target": "same", "factor": 0.5},
        {**TRIPLET, "factor": 2.0},
        {"name": "gaussian_nll", "outputs": ["left", "spread"], "target": "wanted"},
        {"name": "mse", "output": "other", "target": "wanted"},
    ]
    batches = [
        (inputs_of("towers", seed=s), {"same": signs(), "wanted": rows(ROWS, 4, seed=s)})
        for s in range(5)
    ]
    training.compare(trainers, "towers", batches, SGD, losses, loss_mode=mode)


@pytest.mark.parametrize(
    ("model", "loss", "targets"),
    [
        ("towers", TRIPLET, {}),
        ("towers", {"name": "gaussian_nll", "outputs": ["left", "spread"]},
         {"target": rows(ROWS, 4, seed=3)}),
        ("frames", {"name": "ctc", "zero_infinity": True}, sequences()),
    ],
    ids=["triplet_margin", "gaussian_nll", "ctc"],
)  # fmt: skip
def test_evaluation_combines_uneven_batches(
    trainers: braid.Client, model: str, loss: dict, targets: dict[str, Tensor]
) -> None:
    inputs = inputs_of(model)
    reference = Reference(model, SGD, loss)
    with torch.no_grad():
        wanted = reference.objective(reference.outputs(inputs), targets).item()
    batches = [
        (
            {name: value[start:end] for name, value in inputs.items()},
            {name: value[start:end] for name, value in targets.items()},
        )
        for start, end in ((0, 5), (5, 6), (6, ROWS))
    ]
    with new_trainer(trainers, model, loss=loss, optimizer=SGD, stages=on(3)) as trainer:
        result = trainer.evaluate(batches, metrics=[])
        assert result.loss == pytest.approx(wanted, abs=1e-12)
        assert result.rows == ROWS
        assert trainer.forward(inputs, targets).loss == pytest.approx(wanted, abs=1e-12)


def test_metrics_of_masks_classes_and_sequences_equal_pytorch(trainers: braid.Client) -> None:
    inputs, labels = inputs_of("cells"), pixels()
    with torch.no_grad():
        logits = Reference("cells", SGD, "dice").outputs(inputs)["output__0"]
    predicted = logits.argmax(1)
    overlaps = []
    for label in range(3):
        one, other = (predicted == label) & (labels >= 0), labels == label
        if (one | other).any():
            overlaps.append((one & other).sum() / (one | other).sum())
    with new_trainer(trainers, "cells", loss="dice", optimizer=SGD, stages=on(3)) as trainer:
        result = trainer.evaluate([(inputs, {"target": labels})], metrics=["iou"])
        assert result.metrics["iou"] == pytest.approx(float(sum(overlaps) / len(overlaps)))
        wanted = masks()
        result = trainer.evaluate([(inputs, {"target": wanted})], metrics=["binary_accuracy", "iou"])
    # The log-probabilities of this model are negative, so it predicts no class.
    right = (wanted == 0).double().mean().item()
    assert result.metrics == pytest.approx({"binary_accuracy": right, "iou": 0.0})
    with new_trainer(trainers, "frames", loss="ctc", optimizer=SGD, stages=on(2)) as trainer:
        result = trainer.evaluate(
            [(inputs_of("frames"), sequences())], metrics=["label_error_rate"]
        )
        assert 0 < result.metrics["label_error_rate"]
        with pytest.raises(braid.InvalidArgument, match="class indices, INT64"):
            trainer.evaluate([(inputs_of("frames"), sequences())], metrics=["accuracy"])


def test_fit_binds_tensors_to_outputs_and_targets(trainers: braid.Client) -> None:
    """The tensors of a batch are the inputs, then the targets in the order of the loss."""
    tokens = sequences()
    loader = [(inputs_of("frames")["x"], tokens["target"], tokens["target_lengths"])] * 3
    loss = {"name": "ctc", "zero_infinity": True}
    result = braid.fit(trainers, "frames", loader, loss=loss, optimizer=SGD, progress=False)
    result.trainer.delete()
    wanted = Reference("frames", SGD, loss).train([(inputs_of("frames"), tokens)] * 3)
    assert result.losses == pytest.approx(wanted.losses, abs=1e-12)


def test_trainer_returns_the_names_of_outputs_and_targets(trainers: braid.Client) -> None:
    losses = [{"name": "gaussian_nll"}, {"name": "triplet_margin"}]
    with new_trainer(trainers, "towers", loss=losses, optimizer=SGD) as trainer:
        gaussian, triplet = trainer.info().losses
        assert gaussian["outputs"] == ["left", "right"]
        assert (gaussian["target"], gaussian["eps"]) == ("target", 1e-6)
        assert triplet["outputs"] == ["left", "right", "other"]
        assert "target" not in triplet
        again = trainers.create_trainer(
            "towers", name=trainer.name, loss=losses, optimizer=SGD, exist_ok=True
        )
        assert again.info().id == trainer.info().id


def test_negative_variance_does_not_reach_the_weights(trainers: braid.Client) -> None:
    loss = {"name": "gaussian_nll", "outputs": ["left", "right"]}
    batch = (inputs_of("towers"), {"target": rows(ROWS, 4)})
    with new_trainer(trainers, "towers", loss=loss, optimizer=SGD) as trainer:
        before = trainer.state_dict()
        with pytest.raises(braid.FailedPrecondition, match=r"the loss \(nan\) is not finite"):
            trainer.step(*batch)
        training.assert_unchanged(before, trainer.state_dict())


@pytest.mark.parametrize(
    ("model", "loss", "targets", "words"),
    [
        ("towers", {"name": "cosine_embedding", **EMBEDDINGS}, {"target": 2 * signs()},
         r"targets\[0\]: 2 in row 0 is out of range .expected 1 or -1"),
        ("net", {"name": "poisson_nll"}, {"target": -rows(ROWS, 5).abs()},
         r"targets\[0\]: .* in row 0 is out of range .expected at least 0"),
        ("cells", {"name": "dice"}, {"target": masks()[:, :2]},
         r"targets\[0\].shape: .*expected INT64 \[7, 4\], class indices, or FP64 \[7, 3, 4\], masks"),
        ("frames", {"name": "ctc"}, {**sequences(), "target_lengths": torch.full((ROWS,), 3)},
         r"targets\[1\]: length 3 in row 0 is out of range .expected 0 to 2, the size of 'target'"),
        ("frames", {"name": "ctc"}, {"target": sequences()["target"]},
         r"targets: 'target_lengths' is missing"),
        ("towers", TRIPLET, {"target": signs()},
         r"targets\[0\].name: no loss takes a target 'target' .expected none"),
    ],
    ids=["cosine_embedding", "poisson_nll", "dice", "ctc", "missing", "triplet_margin"],
)  # fmt: skip
def test_targets_that_do_not_fit_are_named(
    trainers: braid.Client, model: str, loss: dict, targets: dict[str, Tensor], words: str
) -> None:
    with new_trainer(trainers, model, loss=loss, optimizer=SGD, stages=on(3)) as trainer:
        with pytest.raises(braid.InvalidArgument, match=words):
            trainer.step(inputs_of(model), targets)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"name": "cosine_embedding", "outputs": ["left"]},
         r"losses\[0\].outputs: names 1 \(expected 2: input1, input2\)"),
        ({"name": "cosine_embedding", "outputs": ["left", "wrong"]},
         r"losses\[0\].outputs\[1\]: model 'towers' has no output 'wrong'"),
        ({**TRIPLET, "margin": 0}, r"losses\[0\].margin: 0 is out of range .expected above 0"),
    ],
)  # fmt: skip
def test_losses_that_do_not_fit_the_model_are_named(
    trainers: braid.Client, loss: dict, words: str
) -> None:
    with pytest.raises(braid.InvalidArgument, match=words):
        trainers.create_trainer("towers", loss=loss, optimizer=SGD)
