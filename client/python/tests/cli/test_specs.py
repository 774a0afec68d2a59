"""Losses, optimizers and other specifications of the command line."""

import math

import click
import pytest

from braid import _protocol
from braid.cli import specs

Options = _protocol.message("braid.v1.TrainingOptions")
Schedule = _protocol.message("braid.v1.Schedule")


def problem(parse, *arguments):
    with pytest.raises(click.UsageError) as caught:
        parse(*arguments)
    return caught.value.message


def schedule(spec):
    message = Schedule()
    specs.parse_schedule(spec, message)
    return message


def settings(*values):
    message = Options()
    for value in values:
        specs.set_fields("--set", value, message)
    return message


def test_loss_by_its_name():
    loss = specs.parse_loss("mse")
    assert loss.name == "mse" and not loss.HasField("weight")


def test_loss_with_fields_of_every_kind():
    loss = specs.parse_loss(
        "cross_entropy:class_weights=1,2.5,1,label_smoothing=0.1,ignore_index=-1,"
        "REDUCTION=Sum,output=logits,target=y,log_target=true,weight=2"
    )
    assert list(loss.class_weights) == [1, 2.5, 1]
    assert (loss.label_smoothing, loss.ignore_index, loss.weight) == (0.1, -1, 2)
    assert (loss.output, loss.target, loss.log_target) == ("logits", "y", True)
    assert loss.reduction == loss.REDUCTION_SUM


def test_loss_of_the_model_has_no_name():
    loss = specs.parse_loss("output=loss,weight=0.5")
    assert (loss.name, loss.output, loss.weight) == ("", "loss", 0.5)


def test_loss_module_is_read_from_its_file(tmp_path):
    path = tmp_path / "loss.pt"
    path.write_bytes(b"PK\x03\x04 module")
    assert specs.parse_loss(f"module:module={path}").module == b"PK\x03\x04 module"
    assert problem(specs.parse_loss, "module:module=none.pt") == (
        "--loss module: module: cannot read 'none.pt' (No such file or directory)"
    )


@pytest.mark.parametrize("spec, message", [
    ("mse:colour=1", "--loss mse: unknown key 'colour' (expected one of: "),
    ("mse:weight=big", "--loss mse: weight: invalid value 'big' (expected a number)"),
    ("mse:weight=1_0", "--loss mse: weight: invalid value '1_0' (expected a number)"),
    ("mse:ignore_index=0.5",
     "--loss mse: ignore_index: invalid value '0.5' (expected a whole number)"),
    ("mse:ignore_index=9223372036854775808",
     "--loss mse: ignore_index: 9223372036854775808 is out of range (expected 64 bits at most)"),
    ("mse:log_target=maybe",
     "--loss mse: log_target: invalid value 'maybe' (expected true or false)"),
    ("mse:reduction=max", "--loss mse: reduction: invalid value 'max' (expected mean, sum, batchmean)"),
    ("mse:weight=1,2", "--loss mse: invalid value '2' (expected KEY=VALUE,…)"),
    ("mse:2", "--loss mse: invalid value '2' (expected KEY=VALUE,…)"),
])
def test_errors_name_the_field_and_the_value(spec, message):
    assert problem(specs.parse_loss, spec).startswith(message)


@pytest.mark.parametrize("name", [*specs.OPTIMIZERS, "sgd", "ADAMW"])
def test_optimizers_by_the_names_of_pytorch(name):
    assert specs.parse_optimizer(name).WhichOneof("kind") == name.lower()


def test_optimizer_with_parameters():
    adamw = specs.parse_optimizer("AdamW:lr=0.001,beta2=0.95,amsgrad=true").adamw
    assert (adamw.lr, adamw.beta2, adamw.amsgrad) == (0.001, 0.95, True)
    assert not adamw.HasField("beta1")
    assert problem(specs.parse_optimizer, "Adan") == (
        "--optimizer: unknown optimizer 'Adan' "
        "(expected one of: SGD, Adam, AdamW, RMSprop, Adagrad)"
    )
    assert problem(specs.parse_optimizer, "Adam:momentum=1").startswith(
        "--optimizer Adam: unknown key 'momentum' (expected one of: lr, "
    )


def test_schedules_by_either_name():
    multi_step = schedule("MultiStepLR:milestones=30,60,90,gamma=0.2").multi_step
    assert (list(multi_step.milestones), multi_step.gamma) == ([30, 60, 90], 0.2)
    assert schedule("CosineAnnealingLR:T_max=100").cosine.t_max == 100
    assert schedule("plateau").HasField("plateau")
    for name, field in specs.SCHEDULES.items():
        assert schedule(name).WhichOneof("kind") == schedule(field).WhichOneof("kind") == field
    assert problem(schedule, "StairLR").startswith(
        "--schedule: unknown schedule 'StairLR' (expected one of: StepLR, MultiStepLR, "
    )


def test_stages():
    stage = specs.parse_stage("features.0=cpu:0,cuda:1/2")
    assert (stage.path, list(stage.devices)) == ("features.0", ["cpu:0", "cuda:1/2"])
    assert specs.parse_stage("=cpu:1").path == ""
    for wrong in ("features", "features=", "features=cpu:0,"):
        assert problem(specs.parse_stage, wrong).startswith(
            f"--stage: invalid value {wrong!r} (expected PATH=DEVICE,…"
        )


def test_groups_end_their_pattern_at_the_last_colon():
    group = specs.parse_group("^(?:a|b)=,:lr=0.01,frozen=true")
    assert (group.pattern, group.lr, group.frozen) == ("^(?:a|b)=,", 0.01, True)
    for wrong in ("lr=1", ":lr=1", "bias$:", "bias$:lr"):
        assert problem(specs.parse_group, wrong).startswith("--group")


def test_settings_follow_paths():
    options = settings(
        "sync=all_reduce,seed=18446744073709551615", "clipping.norm_type=inf",
        "schedule.warmup.start_factor=0.1",
    )
    assert options.sync == 3 and options.seed == (1 << 64) - 1
    assert math.isinf(options.clipping.norm_type)
    assert options.schedule.warmup.start_factor == 0.1


@pytest.mark.parametrize("value, message", [
    ("colour.red=1", "--set: unknown key 'colour.red'"),
    ("clipping.colour=1", "--set: unknown key 'clipping.colour'"),
    ("seed.x=1", "--set: 'seed.x' is not a single field"),
    ("stages.path=a", "--set: 'stages.path' is not a single field"),
    ("clipping=1", "--set: clipping: has fields of its own (expected one of: clipping.max_norm, "),
    ("seed=-1", "--set: seed: -1 is out of range"),
])
def test_settings_that_do_not_exist(value, message):
    assert problem(settings, value).startswith(message)
