"""Conversion of training options."""

import math

import pytest

from braid import _options

torch = pytest.importorskip("torch")

SCHEDULES = [
    {"name": "StepLR", "step_size": 3, "gamma": 0.5},
    {"name": "MultiStepLR", "milestones": [2, 5], "gamma": 0.5},
    {"name": "ExponentialLR", "gamma": 0.5},
    {"name": "CosineAnnealingLR", "T_max": 10, "eta_min": 0.25},
    {"name": "OneCycleLR", "max_lr": 0.5, "total_steps": 10, "pct_start": 0.25,
     "anneal_strategy": "linear", "cycle_momentum": False, "base_momentum": 0.5,
     "max_momentum": 0.75, "div_factor": 2.0, "final_div_factor": 4.0, "three_phase": True},
    {"name": "ReduceLROnPlateau", "mode": "max", "factor": 0.5, "patience": 0, "threshold": 0.25,
     "threshold_mode": "abs", "cooldown": 2, "min_lr": 0.125, "eps": 0.5, "interval": 4},
]


@pytest.mark.parametrize("options", [
    {},
    {"loss_mode": "per_replica", "unweighted_mean": True, "seed": 2**64 - 1},
    {"parameter_groups": [{"pattern": "^features\\.", "lr": 0.0, "weight_decay": 0.5,
                           "momentum": 0.25}, {"pattern": "bias$", "frozen": True}]},
    {"clip_grad_norm": 0.5, "clip_grad_value": 0.25},
    {"clip_grad_norm": {"max_norm": 0.5, "norm_type": math.inf}},
    {"precision": "float16", "grad_scaler": {"init_scale": 4.0, "growth_factor": 2.0,
                                             "backoff_factor": 0.5, "growth_interval": 7}},
    {"precision": "bfloat16", "non_finite": "skip", "sync": "all_reduce", "sync_batch_norm": True},
    {"eval_modules": ["^backbone$", r"\.bn\d"]},
    {"stages": [{"path": "features", "devices": ["cpu:1", "cpu:0"]}, {"path": "classifier"}],
     "output_device": "host", "micro_batch": 5},
    {"checkpoint_every": 10, "checkpoint_every_seconds": 0.5, "checkpoint_keep": 0},
    {"idle_timeout": 0.5},
    {"schedule": {"warmup": {"steps": 5}}},
    {"schedule": {"name": "StepLR", "step_size": 3, "warmup": {"steps": 5, "start_factor": 0.5}}},
    *({"schedule": schedule} for schedule in SCHEDULES),
])
def test_options_round_trip(options):
    assert _options.from_proto(_options.to_proto(options)) == options


def test_defaults_are_not_sent():
    options = dict.fromkeys(_options.OPTIONS)
    options.update(unweighted_mean=False, sync_batch_norm=False, seed=0)
    assert _options.to_proto(options).SerializeToString() == b""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["name"])
def test_schedule_parameters_are_those_of_pytorch(schedule):
    parameters = {key: value for key, value in schedule.items() if key not in ("name", "interval")}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.5)
    getattr(torch.optim.lr_scheduler, schedule["name"])(optimizer, **parameters)


@pytest.mark.parametrize("word, value", [("cos", False), ("linear", True), (None, False)])
def test_default_choices_are_accepted(word, value):
    schedule = {"name": "OneCycleLR", "max_lr": 1, "total_steps": 2, "anneal_strategy": word}
    assert _options.to_proto({"schedule": schedule}).schedule.one_cycle.linear is value


@pytest.mark.parametrize("options, message", [
    ({"loss_mode": "mine"},
     "loss_mode: unknown value 'mine' (expected one of central, per_replica, model, client)"),
    ({"schedule": "LambdaLR"},
     "schedule: unknown name 'LambdaLR' (expected one of StepLR, MultiStepLR"),
    ({"schedule": {"name": "StepLR", "T_max": 3}},
     "schedule 'StepLR': unknown parameter 'T_max' (expected one of step_size, gamma)"),
    ({"schedule": {"step_size": 3}},
     "schedule: {'step_size': 3} (expected a name or a dict with a \"name\")"),
    ({"schedule": {"warmup": 5}}, "warmup: 5 (expected a dict)"),
    ({"schedule": {"name": "StepLR", "step_size": 0.5}}, "step_size: 0.5 (expected an integer)"),
    ({"parameter_groups": [{"pattern": "a"}, {"pattern": "b", "betas": 1}]},
     "parameter_groups[1]: unknown parameter 'betas' (expected one of pattern, frozen, lr"),
    ({"parameter_groups": ["bias"]}, "parameter_groups[0]: 'bias' (expected a dict)"),
    ({"clip_grad_norm": "much"}, "clip_grad_norm: 'much' (expected a number)"),
    ({"clip_grad_norm": {"norm": 1}}, "(expected one of max_norm, norm_type)"),
    ({"precision": "float32"},
     "precision: unknown value 'float32' (expected one of bfloat16, float16)"),
    ({"stages": [{"path": "a", "devices": [0]}]}, "devices: 0 (expected a string)"),
    ({"sync": "nccl"},
     "sync: unknown value 'nccl' (expected one of auto, reduce_broadcast, all_reduce)"),
])
def test_invalid_option_is_named(options, message):
    with pytest.raises(ValueError) as caught:
        _options.to_proto(options)
    assert message in str(caught.value)
