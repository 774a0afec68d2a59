"""Error table of CreateTrainer without its optimizer, on the model chain: [-1, 10] → 5 classes, on
the devices cpu:0 and cpu:1."""

from __future__ import annotations

import io
import math
import warnings
from typing import Any

import grpc
import torch
from e2e.support.error_checks import Rejection, assigner, number
from torch import Tensor, nn

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


class OneArgument(nn.Module):
    def forward(self, output: Tensor) -> Tensor:
        return output.sum()


class NotATensor(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> int:
        return 1


class NoForward(nn.Module):
    @torch.jit.export
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum()


def saved(module: nn.Module) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def loss(name: str, **fields: Any) -> Any:
    return assigner(losses__0__name=name, **{f"losses__0__{key}": v for key, v in fields.items()})


def option(name: str, change: Any, words: tuple[str, ...], field: str) -> Rejection:
    return Rejection(name, change, words, f"options.{field}")


def options(**values: Any) -> Any:
    return assigner(**{f"options__{path}": value for path, value in values.items()})


def groups(*of: dict) -> Any:
    return lambda request: [request.options.parameter_groups.add(**each) for each in of]


def stages(*of: dict) -> Any:
    return lambda request: [request.options.stages.add(**each) for each in of]


def all_of(*changes: Any) -> Any:
    return lambda request: [change(request) for change in changes]


def several(request: Any) -> None:
    request.losses.add(name="mse", output="nosuch")


def drop_losses(request: Any) -> None:
    del request.losses[:]


def use(optimizer: str) -> Any:
    return lambda request: getattr(request.optimizer, optimizer).SetInParent()


LOSS_ROWS = [
    Rejection(
        "output of megabytes",
        assigner(losses__0__output="x" * 3000000),
        ("3000000 bytes", "at most 1024"),
        "losses[0].output",
    ),
    number("losses[0].weight", math.inf),
    Rejection(
        "class weights",
        loss("cross_entropy", class_weights=[1, -2, 1, 1, 1]),
        ("-2 at 1", "at least 0"),
        "losses[0].class_weights",
    ),
    Rejection(
        "class weights of mse",
        loss("mse", class_weights=[1, 2]),
        ("cross_entropy's, nll's and focal's", "'mse'"),
        "losses[0].class_weights",
    ),
    Rejection(
        "positive weights",
        loss("bce_with_logits", pos_weight=[math.nan]),
        ("nan", "at least 0"),
        "losses[0].pos_weight",
    ),
    Rejection(
        "shape of positive weights",
        loss("bce_with_logits", pos_weight=[1, 2, 3], pos_weight_shape=[2, 2]),
        ("[2, 2]", "the 3 numbers of pos_weight"),
        "losses[0].pos_weight_shape",
    ),
    Rejection(
        "outputs of mse", loss("mse", outputs=["a", "b"]), ("'mse'",), "losses[0].outputs"
    ),
    Rejection(
        "output of embeddings",
        loss("cosine_embedding", output="output__0"),
        ("'output__0'", "several outputs", "input1, input2"),
        "losses[0].output",
    ),
    Rejection(
        "too few outputs",
        loss("cosine_embedding"),
        ("1 outputs", "takes 2"),
        "losses[0].outputs",
    ),
    Rejection(
        "division by rows",
        loss("mse", reduction=3),
        ("batchmean is kl_div's",),
        "losses[0].reduction",
    ),
    Rejection(
        "positive weights of l1",
        loss("l1", pos_weight=[1.0]),
        ("bce_with_logits", "'l1'"),
        "losses[0].pos_weight",
    ),
    *[
        Rejection(
            f"{name} {value}",
            loss(kind, **{name: value}),
            (str(value), "above 0"),
            f"losses[0].{name}",
        )
        for kind, name in (("smooth_l1", "beta"), ("huber", "delta"))
        for value in (0, -1, math.inf)
    ],
    Rejection("beta of huber", loss("huber", beta=1), ("smooth_l1", "'huber'"), "losses[0].beta"),
    Rejection("delta of mse", loss("mse", delta=1), ("huber", "'mse'"), "losses[0].delta"),
    Rejection(
        "smoothing of nll",
        loss("nll", label_smoothing=0.1),
        ("cross_entropy", "'nll'"),
        "losses[0].label_smoothing",
    ),
    Rejection(
        "log target of mse",
        loss("mse", log_target=True),
        ("kl_div", "'mse'"),
        "losses[0].log_target",
    ),
    Rejection("second loss", several, ("nosuch", "output__0"), "losses[1].output"),
    Rejection("no module", loss("module"), ("TorchScript",), "losses[0].module"),
    Rejection(
        "module of mse", loss("mse", module=b"x"), ("module", "'mse'"), "losses[0].module"
    ),
    Rejection(
        "no archive",
        loss("module", module=b"no archive" * 100),
        ("cannot be loaded as TorchScript",),
        "losses[0].module",
    ),
    Rejection(
        "half a module",
        loss("module", module=saved(nn.MSELoss())[:700]),
        ("cannot be loaded as TorchScript",),
        "losses[0].module",
    ),
    Rejection(
        "module of one argument",
        loss("module", module=saved(OneArgument())),
        ("forward(self, output: Tensor, target: Tensor)",),
        "losses[0].module",
    ),
    Rejection(
        "module that returns a number",
        loss("module", module=saved(NotATensor())),
        ("int", "-> Tensor"),
        "losses[0].module",
    ),
    Rejection(
        "module without forward",
        loss("module", module=saved(NoForward())),
        ("forward(output, target)",),
        "losses[0].module",
    ),
    Rejection(
        "loss of the client's",
        options(loss_mode=4),
        ("1", "client computes", "leave it empty"),
        "losses",
    ),
    Rejection(
        "no loss on replicas",
        all_of(options(loss_mode=2), drop_losses),
        ("at least one",),
        "losses",
    ),
    Rejection(
        "name of the model's loss",
        options(loss_mode=3),
        ("cross_entropy", "model computes"),
        "losses[0].name",
    ),
    Rejection(
        "target of the model's loss",
        all_of(options(loss_mode=3), loss("", target="y")),
        ("'y'", "model computes"),
        "losses[0].target",
    ),
    Rejection(
        "module of the model's loss",
        all_of(options(loss_mode=3), loss("", module=b"x")),
        ("module", "model computes"),
        "losses[0].module",
    ),
    option(
        "unweighted mean", options(unweighted_mean=True), ("the model computes",), "unweighted_mean"
    ),
]

_NUMBERS = [
    ("clipping.max_norm", 0.0),
    ("clipping.max_norm", -1.0),
    ("clipping.max_norm", math.nan),
    ("clipping.norm_type", 0.5),
    ("clipping.norm_type", math.nan),
    ("clipping.max_value", 0.0),
    ("clipping.max_value", math.nan),
    ("micro_batch", -1),
    ("checkpoints.every_operations", -1),
    ("checkpoints.every_seconds", -1.0),
    ("checkpoints.every_seconds", math.nan),
    ("checkpoints.keep", -1),
    ("idle_timeout_seconds", -1.0),
    ("idle_timeout_seconds", math.inf),
    ("schedule.step.step_size", -1),
    ("schedule.exponential.gamma", -0.5),
    ("schedule.exponential.gamma", math.nan),
    ("schedule.cosine.t_max", -1),
    ("schedule.plateau.interval", -1),
    ("schedule.plateau.factor", 1.0),
    ("schedule.plateau.factor", 0.0),
    ("schedule.plateau.patience", -1),
    ("schedule.plateau.threshold", -0.5),
    ("schedule.plateau.cooldown", -1),
    ("schedule.plateau.min_lr", -0.5),
    ("schedule.plateau.eps", -0.5),
    ("schedule.one_cycle.max_lr", -0.5),
    ("schedule.warmup.steps", -1),
]
CYCLE = {"schedule__one_cycle__max_lr": 0.1, "schedule__one_cycle__total_steps": 9}

OPTION_ROWS = [
    *[number(f"options.{path}", value) for path, value in _NUMBERS],
    *[
        option(
            f"{field} 7",
            options(**{field: 7}),
            ("7",),
            field,
        )
        for field in ("loss_mode", "precision", "non_finite", "sync")
    ],
    *[
        option(
            f"cycle {name} {value}",
            options(**{**CYCLE, f"schedule__one_cycle__{name}": value}),
            (name, f"{value:g}"),
            f"schedule.one_cycle.{name}",
        )
        for name, value in (
            ("total_steps", -3),
            ("pct_start", 1.5),
            ("pct_start", math.nan),
            ("div_factor", 0.0),
            ("final_div_factor", -1.0),
            ("base_momentum", -0.5),
            ("max_momentum", 0.0),
        )
    ],
    option(
        "cycle of Adam's momentum",
        all_of(use("adam"), options(**CYCLE, schedule__one_cycle__max_momentum=1.5)),
        ("1.5", "less than 1"),
        "schedule.one_cycle.max_momentum",
    ),
    option(
        "cycle of Adagrad's momentum",
        all_of(use("adagrad"), options(**CYCLE)),
        ("Adagrad has no momentum",),
        "schedule.one_cycle.cycle_momentum",
    ),
    option(
        "warm-up factor",
        options(schedule__warmup__steps=3, schedule__warmup__start_factor=1.5),
        ("1.5", "at most 1"),
        "schedule.warmup.start_factor",
    ),
    option(
        "warm-up of a cycle",
        options(**CYCLE, schedule__warmup__steps=3),
        ("one_cycle",),
        "schedule.warmup",
    ),
    option(
        "milestones",
        options(schedule__multi_step__milestones=[3, 2]),
        ("2 after 3", "ascending"),
        "schedule.multi_step.milestones[1]",
    ),
    option(
        "scaler without float16",
        options(grad_scaler__init_scale=2.0),
        ("PRECISION_FLOAT16",),
        "grad_scaler",
    ),
    *[
        option(
            f"scaler {name} {value}",
            options(precision=3, **{f"grad_scaler__{name}": value}),
            (name, f"{value:g}"),
            f"grad_scaler.{name}",
        )
        for name, value in (
            ("init_scale", 0.0),
            ("init_scale", math.inf),
            ("growth_factor", 1.0),
            ("backoff_factor", 1.0),
            ("backoff_factor", 0.0),
            ("growth_interval", -1),
        )
    ],
    option(
        "empty pattern", groups({"lr": 0.1}), ("regular expression",), "parameter_groups[0].pattern"
    ),
    option(
        "pattern",
        groups({"pattern": "bias"}, {"pattern": "(unclosed"}),
        ("(unclosed", "regular expression"),
        "parameter_groups[1].pattern",
    ),
    option(
        "pattern of megabytes",
        groups({"pattern": "bias"}, {"pattern": "(a|b)" * 600000}),
        ("3000000 bytes", "at most 1024"),
        "parameter_groups[1].pattern",
    ),
    option(
        "pattern that takes much memory",
        groups({"pattern": ".{1000}" * 40}),
        ("pattern too large",),
        "parameter_groups[0].pattern",
    ),
    option(
        "many groups",
        groups(*[{"pattern": "bias"}] * 1025),
        ("1025 entries", "at most 1024"),
        "parameter_groups",
    ),
    option(
        "many milestones",
        options(schedule__multi_step__milestones=list(range(1025))),
        ("1025 entries", "at most 1024"),
        "schedule.multi_step.milestones",
    ),
    option(
        "pattern of no parameter",
        groups({"pattern": "^nosuch"}),
        ("^nosuch", "no parameter"),
        "parameter_groups[0].pattern",
    ),
    option(
        "group's rate",
        groups({"pattern": "bias", "lr": -0.5}),
        ("-0.5", "at least 0"),
        "parameter_groups[0].lr",
    ),
    option(
        "frozen group's weight decay",
        groups({"pattern": "bias", "frozen": True, "weight_decay": 0.5}),
        ("frozen",),
        "parameter_groups[0].weight_decay",
    ),
    option(
        "group's momentum for Adam",
        all_of(use("adam"), groups({"pattern": "bias", "momentum": 0.5})),
        ("SGD and RMSprop", "Adam"),
        "parameter_groups[0].momentum",
    ),
    Rejection(
        "nothing to train",
        groups({"pattern": ".", "frozen": True}),
        ("every parameter is frozen",),
        None,
        FAILED_PRECONDITION,
    ),
    option(
        "submodule",
        stages({"path": "layers"}, {"path": "nosuch"}),
        ("nosuch", "'layers'"),
        "stages[1].path",
    ),
    option(
        "submodule of a submodule",
        stages({"path": "layers.nosuch"}),
        ("nosuch", "'0'", "'4'"),
        "stages[0].path",
    ),
    option(
        "two stages without a path",
        stages({"path": "layers"}, {}),
        ("submodule's path",),
        "stages[1].path",
    ),
    option(
        "device",
        stages({"devices": ["cpu:0", "cuda:7"]}),
        ("'cuda:7'", "cpu:0, cpu:1"),
        "stages[0].devices[1]",
    ),
    option(
        "device twice",
        stages({"devices": ["cpu:1", "cpu:1"]}),
        ("'cpu:1'", "once"),
        "stages[0].devices[1]",
    ),
    option(
        "parameters without a stage",
        stages({"path": "layers.0"}, {"path": "layers.2"}),
        ("layers.4.weight", "0 stages"),
        "stages",
    ),
    option(
        "parameters in two stages",
        stages({"path": "layers"}, {"path": "layers.4"}),
        ("layers.4.weight", "2 stages"),
        "stages",
    ),
    option(
        "output device",
        options(output_device="cpu:2"),
        ("'cpu:2'", "cpu:0, cpu:1"),
        "output_device",
    ),
]
