"""The trainer that the options of `braid train` describe."""

import click
import pytest

from braid.cli.commands import train


def request(*arguments, targets=("y",)):
    """The request of a command line, whose --target options are ignored."""
    context = train.command.make_context("train", [*arguments, "--input", "x=x.npy"])
    return train.trainer_request(context.params, list(targets))


def problem(*arguments, targets=("y",)):
    with pytest.raises(click.UsageError) as caught:
        request(*arguments, targets=targets)
    return caught.value.message


def test_defaults_are_left_to_the_server():
    made = request("toy")
    assert (made.model, made.name) == ("toy", "")
    [loss] = made.losses
    assert (loss.name, loss.target) == ("cross_entropy", "y")
    assert made.optimizer.WhichOneof("kind") == "sgd"
    assert not made.optimizer.sgd.HasField("lr")
    assert made.options.SerializeToString() == b""
    assert made.request_id


def test_every_option_has_its_field():
    made = request(
        "toy", "--trainer", "t", "--loss", "mse:weight=2", "--loss", "l1:output=b,target=z",
        "--loss-mode", "per_replica", "--optimizer", "RMSprop:alpha=0.9", "--lr", "0.1",
        "--weight-decay", "0.01", "--momentum", "0.9", "--group", "bias$:frozen=true",
        "--schedule", "StepLR:step_size=10", "--warmup", "5", "--clip-grad-norm", "1.5",
        "--precision", "bfloat16", "--sync-batch-norm", "--eval-modules", "^a", "--eval-modules",
        "bn", "--micro-batch", "8",
        "--stage", "a=cpu:0,cpu:1", "--stage", "b=cpu:0", "--output-device", "host",
        "--checkpoint-every", "100", "--seed", "7", "--set", "sync=all_reduce",
        "--set", "checkpoints.keep=5",
    )
    assert made.name == "t"
    assert [(loss.name, loss.weight, loss.target) for loss in made.losses] == [
        ("mse", 2, "y"), ("l1", 0, "z")
    ]
    rmsprop = made.optimizer.rmsprop
    assert (rmsprop.alpha, rmsprop.lr, rmsprop.weight_decay, rmsprop.momentum) == (
        0.9, 0.1, 0.01, 0.9
    )
    options = made.options
    assert (options.loss_mode, options.precision, options.sync) == (2, 2, 3)
    assert [(group.pattern, group.frozen) for group in options.parameter_groups] == [
        ("bias$", True)
    ]
    assert options.schedule.step.step_size == 10
    assert options.schedule.warmup.steps == 5
    assert options.clipping.max_norm == 1.5
    assert (options.sync_batch_norm, options.micro_batch, options.output_device) == (
        True, 8, "host"
    )
    assert list(options.eval_modules) == ["^a", "bn"]
    assert [(stage.path, list(stage.devices)) for stage in options.stages] == [
        ("a", ["cpu:0", "cpu:1"]), ("b", ["cpu:0"])
    ]
    assert (options.checkpoints.every_operations, options.checkpoints.keep) == (100, 5)
    assert options.seed == 7


def test_optimizers_without_momentum_take_none():
    assert problem("toy", "--optimizer", "AdamW", "--momentum", "0.9").startswith(
        "--optimizer AdamW: unknown key 'momentum' (expected one of: lr, "
    )


def test_one_of_several_targets_is_named():
    assert problem("toy", "--loss", "mse", targets=("y", "z")) == (
        "--loss mse: has no target (expected target=NAME, one of: y, z)"
    )
    [loss] = request("toy", "--loss", "mse:target=z", targets=("y", "z")).losses
    assert loss.target == "z"


def test_a_loss_needs_a_target():
    assert problem("toy", targets=()) == (
        "--loss cross_entropy: has no target (expected a --target)"
    )


def test_the_loss_of_the_model_takes_no_target():
    [loss] = request("toy", "--loss-mode", "model").losses
    assert loss.SerializeToString() == b""
    [loss] = request("toy", "--set", "loss_mode=model").losses
    assert loss.SerializeToString() == b""
    [loss] = request("toy", "--loss-mode", "Model", "--loss", "output=loss").losses
    assert (loss.name, loss.output, loss.target) == ("", "loss", "")
