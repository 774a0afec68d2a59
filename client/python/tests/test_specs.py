"""Losses and optimizers in PyTorch's words."""

import pytest

from braid import _specs


@pytest.mark.parametrize("loss", [
    {"name": "cross_entropy"},
    {"name": "cross_entropy", "ignore_index": 0, "label_smoothing": 0.25, "reduction": "sum"},
    {"name": "mse", "output": "output__1", "target": "y", "reduction": "mean"},
])
def test_loss_round_trip(loss):
    assert _specs.loss_from_proto(_specs.loss_to_proto(loss)) == loss


@pytest.mark.parametrize("optimizer", [
    {"name": "SGD"},
    {"name": "SGD", "lr": 0.0, "momentum": 0.5, "weight_decay": 0.25, "nesterov": True},
    {"name": "SGD", "momentum": 0.5, "dampening": 0.5},
    {"name": "AdamW"},
    {"name": "AdamW", "lr": 0.5, "betas": (0.5, 0.75), "eps": 0.125, "weight_decay": 0.0},
])
def test_optimizer_round_trip(optimizer):
    assert _specs.optimizer_from_proto(_specs.optimizer_to_proto(optimizer)) == optimizer


def test_a_name_alone_leaves_every_default_to_the_server():
    assert _specs.optimizer_to_proto("SGD").WhichOneof("kind") == "sgd"
    assert not _specs.optimizer_to_proto("AdamW").adamw.HasField("lr")
    assert not _specs.loss_to_proto("cross_entropy").HasField("ignore_index")


@pytest.mark.parametrize("loss, message", [
    ("l2", "unknown loss 'l2'; known: cross_entropy, mse"),
    ({"name": "mse", "ignore_index": 1},
     "unknown parameter of loss 'mse': 'ignore_index'; known: output, target, reduction"),
    ({"name": "mse", "reduction": "none"}, "unknown reduction 'none'; known: mean, sum"),
    ({"name": "cross_entropy", "label_smoothing": "a bit"}, "label_smoothing must be a number"),
    ({"reduction": "sum"}, 'loss must be a name or a dict with a "name"'),
    (None, 'loss must be a name or a dict with a "name"; got None'),
])
def test_a_wrong_loss(loss, message):
    with pytest.raises(ValueError) as caught:
        _specs.loss_to_proto(loss)
    assert message in str(caught.value)


@pytest.mark.parametrize("optimizer, message", [
    ("sgd", "unknown optimizer 'sgd'; known: SGD, AdamW"),
    ({"name": "SGD", "betas": (0.9, 0.99)},
     "unknown parameter of optimizer 'SGD': 'betas'; "
     "known: lr, momentum, dampening, weight_decay, nesterov"),
    ({"name": "AdamW", "momentum": 0.9}, "known: lr, betas, eps, weight_decay"),
    ({"name": "AdamW", "betas": 0.9}, "betas must be two numbers"),
    ({"name": "AdamW", "betas": (0.9,)}, "betas must be two numbers"),
    ({"name": "SGD", "lr": "fast"}, "lr must be a number; got 'fast'"),
    ({"lr": 0.1}, 'optimizer must be a name or a dict with a "name"'),
])
def test_a_wrong_optimizer(optimizer, message):
    with pytest.raises(ValueError) as caught:
        _specs.optimizer_to_proto(optimizer)
    assert message in str(caught.value)


def test_the_callers_dict_stays_as_it_is():
    optimizer = {"name": "AdamW", "betas": (0.9, 0.99)}
    _specs.optimizer_to_proto(optimizer)
    assert optimizer == {"name": "AdamW", "betas": (0.9, 0.99)}
