"""Conversion of losses and optimizers."""

import io

import numpy as np
import pytest

from braid import _specs

torch = pytest.importorskip("torch")

LOSSES = (
    "cross_entropy, nll, mse, l1, smooth_l1, huber, bce_with_logits, kl_div, poisson_nll, "
    "gaussian_nll, focal, sigmoid_focal, dice, cosine_embedding, triplet_margin, ctc, module"
)


class Halved(torch.nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - target) ** 2).mean() / 2


@pytest.mark.parametrize("loss", [
    {"name": "cross_entropy"},
    {"name": "cross_entropy", "ignore_index": 0, "label_smoothing": 0.25, "reduction": "sum"},
    {"name": "cross_entropy", "weight": [0.5, 2.0], "factor": 0.25},
    {"name": "nll", "weight": [1.0], "ignore_index": -1},
    {"name": "mse", "output": "output__1", "target": "y", "reduction": "mean"},
    {"name": "l1", "factor": 0.0},
    {"name": "smooth_l1", "beta": 0.5},
    {"name": "huber", "delta": 2.0},
    {"name": "bce_with_logits", "pos_weight": [3.0]},
    {"name": "bce_with_logits", "pos_weight": [[[3.0], [0.5]]]},
    {"name": "kl_div", "log_target": True, "reduction": "sum"},
    {"name": "kl_div", "reduction": "batchmean"},
    {"name": "poisson_nll", "log_input": False, "full": True, "eps": 0.5},
    {"name": "gaussian_nll", "outputs": ["a", "b"], "target": "y", "full": True, "eps": 0.5},
    {"name": "focal", "weight": [0.5, 2.0], "gamma": 0.0, "ignore_index": 255},
    {"name": "sigmoid_focal", "alpha": -1.0, "gamma": 1.5},
    {"name": "dice", "smooth": 0.5, "ignore_index": 0},
    {"name": "cosine_embedding", "outputs": ["a", "b"], "margin": 0.25},
    {"name": "triplet_margin", "outputs": ["a", "p", "n"], "margin": 0.25, "p": 1.0, "eps": 0.5,
     "swap": True, "factor": 2.0},
    {"name": "ctc", "target": "t", "target_lengths": "n", "input_lengths": "m", "blank": 4,
     "zero_infinity": True},
])
def test_loss_round_trip(loss):
    assert _specs.loss_from_proto(_specs.loss_to_proto(loss)) == loss


@pytest.mark.parametrize("optimizer", [
    {"name": "SGD"},
    {"name": "SGD", "lr": 0.0, "momentum": 0.5, "weight_decay": 0.25, "nesterov": True},
    {"name": "SGD", "momentum": 0.5, "dampening": 0.5},
    {"name": "AdamW"},
    {"name": "AdamW", "lr": 0.5, "betas": (0.5, 0.75), "eps": 0.125, "weight_decay": 0.0},
    {"name": "Adam", "betas": (0.5, 0.75), "amsgrad": True},
    {"name": "RMSprop", "alpha": 0.5, "momentum": 0.5, "centered": True},
    {"name": "Adagrad", "lr_decay": 0.5, "initial_accumulator_value": 0.25, "eps": 0.125},
])
def test_optimizer_round_trip(optimizer):
    assert _specs.optimizer_from_proto(_specs.optimizer_to_proto(optimizer)) == optimizer


def test_name_without_parameters_uses_server_defaults():
    assert _specs.optimizer_to_proto("SGD").WhichOneof("kind") == "sgd"
    assert not _specs.optimizer_to_proto("AdamW").adamw.HasField("lr")
    assert not _specs.loss_to_proto("cross_entropy").HasField("ignore_index")


def test_class_weights_differ_from_the_loss_factor():
    loss = _specs.loss_to_proto({"name": "cross_entropy", "weight": [1, 2], "factor": 3})
    assert (loss.weight, list(loss.class_weights)) == (3, [1, 2])
    assert not _specs.loss_to_proto({"name": "nll", "weight": [1]}).HasField("weight")


@pytest.mark.parametrize("weight, numbers", [
    (np.array([1, 2], np.int32), [1, 2]), (torch.tensor([0.5, 2]), [0.5, 2]), (3, [3]),
    (torch.tensor(3.0), [3]), (None, []),
])
def test_weights_accept_arrays_tensors_and_numbers(weight, numbers):
    loss = _specs.loss_to_proto({"name": "bce_with_logits", "pos_weight": weight})
    assert list(loss.pos_weight) == numbers


@pytest.mark.parametrize("weight", [
    [[1, 2, 3]], np.array([[1, 2, 3]], np.float32), torch.tensor([[1, 2, 3]], dtype=torch.bfloat16),
])
def test_pos_weight_has_a_shape(weight):
    loss = _specs.loss_to_proto({"name": "bce_with_logits", "pos_weight": weight})
    assert list(loss.pos_weight) == [1, 2, 3]
    assert list(loss.pos_weight_shape) == [1, 3]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # Deprecated, but supported.
def test_script_module_is_accepted_as_loss():
    module = torch.jit.script(Halved())
    for loss in (module, {"name": "module", "module": module, "reduction": "sum"}):
        proto = _specs.loss_to_proto(loss)
        assert proto.name == "module"
        loaded = torch.jit.load(io.BytesIO(proto.module))
        assert loaded(torch.ones(3), torch.zeros(3)).item() == 0.5
    assert proto.reduction == proto.REDUCTION_SUM
    assert _specs.loss_to_proto({"name": "module", "module": b"file"}).module == b"file"


def test_module_other_than_a_script_is_rejected():
    with pytest.raises(ValueError, match=r"module: a Halved \(expected a torch.jit.ScriptModule"):
        _specs.loss_to_proto({"name": "module", "module": Halved()})
    with pytest.raises(ValueError, match='no "module"'):
        _specs.loss_to_proto("module")


@pytest.mark.parametrize("loss, names", [
    ({"name": "mse", "target": "y"}, ["y"]),
    ({"name": "triplet_margin", "margin": 1.0}, []),
    ({"name": "ctc", "target": "t", "target_lengths": "n"}, ["t", "n"]),
    ({"name": "ctc", "target": "t", "target_lengths": "n", "input_lengths": "m"}, ["t", "n", "m"]),
])
def test_target_names_lists_all_targets_of_a_loss(loss, names):
    assert _specs.target_names(loss) == names


def test_several_losses_are_converted():
    first, second = _specs.losses_to_proto(
        ["mse", {"name": "l1", "output": "b", "target": "b", "factor": 0.5}], "central"
    )
    assert (first.name, second.name, second.output, second.weight) == ("mse", "l1", "b", 0.5)


def test_losses_of_modes_model_and_client():
    (loss,) = _specs.losses_to_proto(None, "model")
    assert loss.name == ""
    (loss,) = _specs.losses_to_proto({"output": "loss", "factor": 2}, "model")
    assert (loss.name, loss.output, loss.weight) == ("", "loss", 2)
    assert _specs.loss_from_proto(loss) == {"output": "loss", "factor": 2}
    assert _specs.losses_to_proto(None, "client") == []


@pytest.mark.parametrize("loss, mode, message", [
    (None, "central", "loss: missing"),
    (None, "per_replica", "loss: missing"),
    ("mse", "client", "not allowed with loss_mode 'client'"),
    ("mse", "model", "expected a dict such as"),
    ({"name": "mse"}, "model", "loss with loss_mode 'model': unknown parameter 'name'"),
])
def test_loss_that_does_not_match_the_mode_is_rejected(loss, mode, message):
    with pytest.raises(ValueError, match=message):
        _specs.losses_to_proto(loss, mode)


@pytest.mark.parametrize("loss, message", [
    ("l2", f"loss: unknown name 'l2' (expected one of {LOSSES})"),
    ({"name": "mse", "ignore_index": 1},
     "loss 'mse': unknown parameter 'ignore_index' "
     "(expected one of output, target, reduction, factor)"),
    ({"name": "mse", "reduction": "none"},
     "reduction: unknown value 'none' (expected one of mean, sum)"),
    ({"name": "cross_entropy", "label_smoothing": "a bit"},
     "label_smoothing: 'a bit' (expected a number)"),
    ({"name": "cross_entropy", "ignore_index": 0.5},
     "ignore_index: 0.5 (expected an integer)"),
    ({"name": "cross_entropy", "weight": "even"}, "weight: 'even' (expected numbers)"),
    ({"name": "kl_div", "log_target": 1}, "log_target: 1 (expected True or False)"),
    ({"name": "bce_with_logits", "pos_weight": [[1], [1, 2]]},
     "pos_weight: [[1], [1, 2]] (expected rows of the same length)"),
    ({"name": "bce_with_logits", "pos_weight": [["a"]]}, "pos_weight: 'a' (expected a number)"),
    ({"name": "mse", "reduction": "batchmean"},
     "reduction: unknown value 'batchmean' (expected one of mean, sum)"),
    ({"name": "mse", "output": 1}, "output: 1 (expected a string)"),
    ({"name": "triplet_margin", "outputs": ["a", 1, "n"]}, "outputs: 1 (expected a string)"),
    ({"name": "triplet_margin", "target": "y"},
     "unknown parameter 'target' (expected one of outputs, reduction, factor, margin, p, eps, swap)"),
    ({"name": "gaussian_nll", "output": "mean"},
     "unknown parameter 'output' (expected one of outputs, target, reduction, factor, full, eps)"),
    ({"reduction": "sum"}, '(expected a name or a dict with a "name")'),
    (None, 'loss: None (expected a name or a dict with a "name")'),
])
def test_invalid_loss_is_rejected(loss, message):
    with pytest.raises(ValueError) as caught:
        _specs.loss_to_proto(loss)
    assert message in str(caught.value)


@pytest.mark.parametrize("optimizer, message", [
    ("sgd", "optimizer: unknown name 'sgd' (expected one of SGD, Adam, AdamW, RMSprop, Adagrad)"),
    ({"name": "SGD", "betas": (0.9, 0.99)},
     "optimizer 'SGD': unknown parameter 'betas' "
     "(expected one of lr, momentum, dampening, weight_decay, nesterov)"),
    ({"name": "AdamW", "momentum": 0.9}, "(expected one of lr, betas, eps, weight_decay, amsgrad)"),
    ({"name": "AdamW", "betas": 0.9}, "(expected two numbers, such as (0.9, 0.999))"),
    ({"name": "AdamW", "betas": (0.9,)}, "(expected two numbers, such as (0.9, 0.999))"),
    ({"name": "SGD", "lr": "fast"}, "lr: 'fast' (expected a number)"),
    ({"lr": 0.1}, '(expected a name or a dict with a "name")'),
])
def test_invalid_optimizer_is_rejected(optimizer, message):
    with pytest.raises(ValueError) as caught:
        _specs.optimizer_to_proto(optimizer)
    assert message in str(caught.value)


def test_dict_of_the_caller_is_not_changed():
    optimizer = {"name": "AdamW", "betas": (0.9, 0.99)}
    _specs.optimizer_to_proto(optimizer)
    assert optimizer == {"name": "AdamW", "betas": (0.9, 0.99)}
