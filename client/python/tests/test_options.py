"""Training options in PyTorch's words."""

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
    {"stages": [{"path": "features", "devices": ["cpu:1", "cpu:0"]}, {"path": "classifier"}],
     "output_device": "host", "micro_batch": 5},
    {"checkpoint_every": 10, "checkpoint_every_seconds": 0.5, "checkpoint_keep": 0},
    {"idle_timeout": 0.5},
    {"schedule": {"warmup": {"steps": 5}}},
    {"schedule": {"name": "StepLR", "step_size": 3, "warmup": {"steps": 5, "start_factor": 0.5}}},
    *({"schedule": schedule} for schedule in SCHEDULES),
])
def test_round_trip(options):
    assert _options.from_proto(_options.to_proto(options)) == options


def test_what_is_absent_or_at_its_default_is_not_sent():
    options = dict.fromkeys(_options.OPTIONS)
    options.update(unweighted_mean=False, sync_batch_norm=False, seed=0)
    assert _options.to_proto(options).SerializeToString() == b""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["name"])
def test_every_parameter_of_a_schedule_is_pytorchs(schedule):
    parameters = {key: value for key, value in schedule.items() if key not in ("name", "interval")}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.5)
    getattr(torch.optim.lr_scheduler, schedule["name"])(optimizer, **parameters)


@pytest.mark.parametrize("word, stands_for", [("cos", False), ("linear", True), (None, False)])
def test_a_word_that_is_the_default_is_taken(word, stands_for):
    schedule = {"name": "OneCycleLR", "max_lr": 1, "total_steps": 2, "anneal_strategy": word}
    assert _options.to_proto({"schedule": schedule}).schedule.one_cycle.linear is stands_for


@pytest.mark.parametrize("options, message", [
    ({"loss_mode": "mine"},
     "unknown loss_mode 'mine'; known: central, per_replica, model, client"),
    ({"schedule": "LambdaLR"}, "unknown schedule 'LambdaLR'; known: StepLR, MultiStepLR"),
    ({"schedule": {"name": "StepLR", "T_max": 3}},
     "unknown parameter of schedule 'StepLR': 'T_max'; known: step_size, gamma"),
    ({"schedule": {"step_size": 3}}, 'schedule must be a name or a dict with a "name"'),
    ({"schedule": {"warmup": 5}}, "warmup must be a dict; got 5"),
    ({"schedule": {"name": "StepLR", "step_size": 0.5}}, "step_size must be an integer; got 0.5"),
    ({"parameter_groups": [{"pattern": "a"}, {"pattern": "b", "betas": 1}]},
     "unknown parameter of parameter_groups[1]: 'betas'; known: pattern, frozen, lr"),
    ({"parameter_groups": ["bias"]}, "parameter_groups[0] must be a dict; got 'bias'"),
    ({"clip_grad_norm": "much"}, "clip_grad_norm must be a number; got 'much'"),
    ({"clip_grad_norm": {"norm": 1}}, "known: max_norm, norm_type"),
    ({"precision": "float32"}, "unknown precision 'float32'; known: bfloat16, float16"),
    ({"stages": [{"path": "a", "devices": [0]}]}, "devices must be a string; got 0"),
    ({"sync": "nccl"}, "unknown sync 'nccl'; known: auto, reduce_broadcast, all_reduce"),
])
def test_what_is_wrong_is_named(options, message):
    with pytest.raises(ValueError) as caught:
        _options.to_proto(options)
    assert message in str(caught.value)
