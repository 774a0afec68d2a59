"""Steps that fail because of their targets, a loss module or the client's gradients. They report
what is wrong and change nothing. A valid step after each gives the same result as in PyTorch, which
never saw the invalid one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import braid
import numpy as np
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference
from e2e.support.training import assert_unchanged, batches, classes, new_trainer, on, rows
from torch import Tensor, nn

ROWS = 7
ADAM = {"name": "Adam", "lr": 0.05}
REPLICAS = 3


def put(target: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    changed = target.clone()
    changed[place] = value
    return changed


@dataclass(frozen=True, eq=False)
class Bad:
    """A target that `loss` on `model` rejects: with these words and this field.

    good: a valid target; None: class indices.
    """

    name: str
    model: str
    loss: str | dict
    target: Tensor
    words: tuple[str, ...]
    field: str = "targets[0]"
    good: Tensor | None = None


LABELS = classes(ROWS)
VALUES = rows(ROWS, 5, seed=1)
SHARES = VALUES.softmax(1)
CELLS = classes(ROWS, 4, of=3)
CELL_SHARES = rows(ROWS, 3, 4, seed=1).softmax(1)

TARGETS = [
    Bad("class", "net", "cross_entropy", put(LABELS, (4,), 5), ("5 in row 4", "0 to 4")),
    Bad("negative class", "net", "cross_entropy", put(LABELS, (6,), -1), ("-1 in row 6", "0 to 4")),
    Bad(
        "class that is ignored by default",
        "net",
        {"name": "cross_entropy", "ignore_index": 1},
        put(LABELS, (0,), -100),
        ("-100 in row 0", "0 to 4"),
    ),
    Bad(
        "INT32",
        "net",
        "cross_entropy",
        LABELS.int(),
        ("INT32 [7]", "INT64 [7]", "FP64 [7, 5]"),
        "targets[0].datatype",
    ),
    Bad(
        "float32 shares",
        "net",
        "cross_entropy",
        SHARES.float(),
        ("FP32 [7, 5]", "FP64 [7, 5]"),
        "targets[0].datatype",
    ),
    Bad(
        "rank",
        "net",
        "cross_entropy",
        LABELS[:, None],
        ("[7, 1]", "INT64 [7]"),
        "targets[0].shape",
    ),
    Bad("rows", "net", "cross_entropy", LABELS[:6], ("[6]", "7 rows"), "targets[0].shape"),
    Bad("no rows", "net", "cross_entropy", LABELS[:0], ("[0]", "7 rows"), "targets[0].shape"),
    Bad(
        "shares with ignore_index",
        "net",
        {"name": "cross_entropy", "ignore_index": 1},
        SHARES,
        ("class probabilities", "ignore_index 1"),
        "targets[0].datatype",
        LABELS,
    ),
    Bad(
        "NaN among shares", "net", "cross_entropy", put(SHARES, (5, 1), math.nan), ("NaN in row 5",)
    ),
    Bad(
        "shares for nll",
        "cells",
        "nll",
        CELL_SHARES,
        ("FP64 [7, 3, 4]", "INT64 [7, 4]"),
        "targets[0].datatype",
        CELLS,
    ),
    Bad("class of a cell", "cells", "nll", put(CELLS, (3, 2), 3), ("3 in row 3", "0 to 2")),
    Bad(
        "cells",
        "cells",
        "nll",
        CELLS[:, :3],
        ("INT64 [7, 3]", "INT64 [7, 4]"),
        "targets[0].shape",
    ),
    *[
        Bad(
            f"shape for {name}",
            "net",
            name,
            SHARES[:, :1],
            ("[7, 1]", "[7, 5]"),
            "targets[0].shape",
            SHARES,
        )
        for name in ("mse", "l1", "smooth_l1", "huber", "bce_with_logits", "kl_div")
    ],
    *[
        Bad(
            f"classes for {name}",
            "net",
            name,
            LABELS,
            ("INT64 [7]", "FP64 [7, 5]"),
            "targets[0].datatype",
            SHARES,
        )
        for name in ("mse", "bce_with_logits", "kl_div")
    ],
    *[
        Bad(
            f"NaN for {name}",
            "net",
            name,
            put(SHARES, (6, 4), math.nan),
            ("NaN in row 6",),
            good=SHARES,
        )
        for name in ("mse", "l1", "smooth_l1", "huber", "bce_with_logits", "kl_div")
    ],
    Bad(
        "above 1",
        "net",
        "bce_with_logits",
        put(SHARES, (6, 0), 1.5),
        ("1.5 in row 6", "0 to 1"),
        good=SHARES,
    ),
    Bad(
        "below 0",
        "net",
        "bce_with_logits",
        put(SHARES, (0, 0), -0.5),
        ("-0.5 in row 0", "0 to 1"),
        good=SHARES,
    ),
]


def inputs_of(model: str) -> dict[str, Tensor]:
    return {"x": rows(ROWS, 10 if model == "net" else 6)}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("options", [{}, {"loss_mode": "per_replica"}, {"micro_batch": 1}], ids=str)
@pytest.mark.parametrize("bad", TARGETS, ids=lambda bad: bad.name)
def test_invalid_target_is_rejected(trainers: braid.Client, bad: Bad, options: dict) -> None:
    x = inputs_of(bad.model)
    labels = CELLS if bad.model == "cells" else LABELS
    good = {"target": labels if bad.good is None else bad.good}
    wanted = Reference(bad.model, ADAM, bad.loss)
    with new_trainer(
        trainers, bad.model, stages=on(REPLICAS), loss=bad.loss, optimizer=ADAM, **options
    ) as trainer:
        trainer.step(x, good)
        wanted.step(x, good)
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward, trainer.forward):
            with pytest.raises(braid.InvalidArgument) as caught:
                operate(x, {"target": bad.target})
            assert caught.value.field == bad.field
            for word in (*bad.words, "target" if "." in bad.field else ""):
                assert word in caught.value.message
        assert_unchanged(before, trainer.state_dict())
        trainer.step(x, good)
        wanted.step(x, good)
        training.assert_state(trainer, wanted, training.MANY_STEPS)


class Needs(nn.Module):
    """Raises an error unless the target is positive."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if bool((target <= 0).any()):
            raise ValueError("the target must be positive")
        return (output - target).square().mean()


class Whole(nn.Module):
    """Returns a scalar for a positive target, otherwise one value per row."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        losses = (output - target).square()
        if bool((target <= 0).any()):
            return losses.mean(1)
        return losses.mean()


class Severed(nn.Module):
    """A loss that does not depend on the output unless the target is positive."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if bool((target <= 0).any()):
            return target.sum()
        return (output - target).square().mean()


class Counted(nn.Module):
    """Returns an integer unless the target is positive."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if bool((target <= 0).any()):
            return torch.zeros([], dtype=torch.int64)
        return (output - target).square().mean()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", ["central", "per_replica"])
@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (Needs, braid.InvalidArgument, ("the module failed", "the target must be positive")),
        (Whole, braid.FailedPrecondition, ("the module returned", "expected", "one element")),
        (Severed, braid.FailedPrecondition, ("the module returned", "no gradient")),
        (Counted, braid.FailedPrecondition, ("the module returned", "floating-point")),
    ],
)
def test_failing_loss_module_is_reported(
    trainers: braid.Client,
    module: Callable[[], nn.Module],
    error: type[braid.BraidError],
    words: tuple[str, ...],
    mode: str,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(module())
    x, good = {"x": rows(ROWS, 10)}, {"target": SHARES}
    wanted = Reference("net", ADAM, "mse")
    with new_trainer(
        trainers, "net", stages=on(REPLICAS), loss=script, optimizer=ADAM, loss_mode=mode
    ) as trainer:
        trainer.step(x, good)
        wanted.step(x, good)
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward):
            with pytest.raises(error) as caught:
                operate(x, {"target": -SHARES})
            for word in ("losses[0].module", *words):
                assert word in caught.value.message
        assert_unchanged(before, trainer.state_dict())
        trainer.step(x, good)
        wanted.step(x, good)
        training.assert_state(trainer, wanted, training.MANY_STEPS)


@pytest.mark.parametrize(
    ("loss", "target", "field", "words"),
    [
        (
            {"name": "cross_entropy", "weight": [1.0, 2.0]},
            torch.zeros_like(LABELS),
            "losses[0].class_weights",
            ("holds 2", "5 classes"),
        ),
        (
            {"name": "bce_with_logits", "pos_weight": [1.0, 2.0]},
            SHARES,
            "losses[0].pos_weight",
            ("has shape [2]", "[7, 5]"),
        ),
    ],
    ids=["class_weights", "pos_weight"],
)
def test_loss_parameter_of_wrong_size_is_rejected(
    trainers: braid.Client, loss: dict, target: Tensor, field: str, words: tuple[str, ...]
) -> None:
    with new_trainer(
        trainers, "net", stages=on(REPLICAS), loss=loss, optimizer=ADAM
    ) as trainer:
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.step({"x": rows(ROWS, 10)}, {"target": target})
    assert caught.value.field == field
    for word in words:
        assert word in caught.value.message


GRADIENT = np.ones((ROWS, 4))
# Case → arguments of Backward that replace {"classes": GRADIENT}; field; words.
GRADIENTS: dict[str, tuple[dict, str, tuple[str, ...]]] = {
    "name": ({"nosuch": GRADIENT}, "output_gradients[0].name", ("'nosuch'",)),
    "rows": ({"classes": GRADIENT[:6]}, "output_gradients[0].shape", ("[6, 4]", "[7, 4]")),
    "shape": ({"value": GRADIENT}, "output_gradients[0].shape", ("[7, 4]", "[7, 1]")),
    "datatype": (
        {"classes": GRADIENT.astype(np.float32)},
        "output_gradients[0].datatype",
        ("FP32", "FP64"),
    ),
    "none": ({}, "output_gradients", ("at least one",)),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_invalid_output_gradients_are_rejected(trainers: braid.Client, case: str) -> None:
    """The graph is still retained for valid gradients."""
    given, field, words = GRADIENTS[case]
    x = inputs_of("heads")
    wanted = Reference("heads", ADAM, lambda outputs, _: outputs["classes"].sum())
    with new_trainer(
        trainers, "heads", stages=on(REPLICAS), loss_mode="client", optimizer=ADAM
    ) as trainer:
        trainer.forward(x, keep_graph=True)
        before = trainer.state_dict()
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.backward(given)
        assert caught.value.field == field
        for word in words:
            assert word in caught.value.message
        assert_unchanged(before, trainer.state_dict())
        trainer.backward({"classes": GRADIENT})
        trainer.optim_step()
        wanted.step(x, {})
        training.assert_state(trainer, wanted, 1e-12)


def forward(trainer: braid.Trainer, x: Any) -> None:
    trainer.forward(x)


def kept(trainer: braid.Trainer, x: Any) -> None:
    trainer.forward(x, keep_graph=True)


@pytest.mark.parametrize(
    "operations",
    [[], [forward], [kept, forward]],
    ids=["nothing", "no graph was kept", "another operation"],
)
def test_backward_needs_retained_graph(trainers: braid.Client, operations: list[Callable]) -> None:
    with new_trainer(
        trainers, "heads", stages=on(REPLICAS), loss_mode="client", optimizer=ADAM
    ) as trainer:
        for operate in operations:
            operate(trainer, inputs_of("heads"))
        with pytest.raises(braid.FailedPrecondition, match="keep_graph"):
            trainer.backward({"classes": GRADIENT})


def test_retained_graph_serves_one_backward(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "heads", stages=on(REPLICAS), loss_mode="client", optimizer=ADAM
    ) as trainer:
        kept(trainer, inputs_of("heads"))
        trainer.backward({"classes": GRADIENT})
        with pytest.raises(braid.FailedPrecondition, match="keep_graph"):
            trainer.backward({"classes": GRADIENT})


def test_graph_is_retained_only_in_training_mode(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "heads", stages=on(REPLICAS), loss_mode="client", optimizer=ADAM
    ) as trainer:
        with pytest.raises(braid.InvalidArgument, match="MODE_TRAIN") as caught:
            trainer.forward(inputs_of("heads"), mode="eval", keep_graph=True)
    assert caught.value.field == "keep_graph"


def test_step_is_rejected_if_the_client_computes_the_loss(trainers: braid.Client) -> None:
    x, target = batches(1, ROWS)[0]
    with new_trainer(
        trainers, "net", stages=on(REPLICAS), loss_mode="client", optimizer=ADAM
    ) as trainer:
        for operate in (trainer.step, trainer.forward_backward):
            with pytest.raises(braid.FailedPrecondition, match="client computes"):
                operate(x, {})
        with pytest.raises(braid.InvalidArgument, match="client computes") as caught:
            trainer.forward(x, target)
    assert caught.value.field == "targets"


def test_model_loss_must_be_returned(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "net", stages=on(REPLICAS), loss_mode="model", optimizer=ADAM
    ) as trainer:
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.step({"x": rows(ROWS, 10)}, {})
    assert caught.value.field == "losses[0].output"
    assert "0-dim or one value per row" in caught.value.message


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"group_lr": [0.1]}, "hyper_parameters.group_lr", ("1 numbers for 2",)),
        ({"group_lr": [0.1, -0.5]}, "hyper_parameters.group_lr[1]", ("-0.5", "at least 0")),
        ({"metric": 1.0}, "hyper_parameters.metric", ("plateau",)),
        ({"momentum": 0.5}, "hyper_parameters.momentum", ("SGD and RMSprop", "Adam")),
        ({"lr": math.nan}, "hyper_parameters.lr", ("nan", "at least 0")),
    ],
    ids=["count of group_lr", "group_lr", "metric", "momentum", "lr"],
)
def test_invalid_hyperparameters_are_rejected(
    trainers: braid.Client, change: dict, field: str, words: tuple[str, ...]
) -> None:
    batch = batches(1, ROWS)[0]
    groups = [{"pattern": "bias"}, {"pattern": "weight"}]
    wanted = Reference("net", ADAM, "cross_entropy", groups)
    with new_trainer(
        trainers,
        "net",
        stages=on(REPLICAS),
        loss="cross_entropy",
        optimizer=ADAM,
        parameter_groups=groups,
    ) as trainer:
        trainer.forward_backward(*batch)
        wanted.accumulate(*batch)
        for operate in (
            lambda: trainer.step(*batch, **change),
            lambda: trainer.optim_step(**change),
        ):
            with pytest.raises(braid.InvalidArgument) as caught:
                operate()
            assert caught.value.field == field
            for word in words:
                assert word in caught.value.message
        trainer.optim_step()
        wanted.update()
        training.assert_state(trainer, wanted, 1e-12)


def test_non_finite_metric_is_rejected(trainers: braid.Client) -> None:
    with new_trainer(
        trainers,
        "net",
        loss="cross_entropy",
        optimizer=ADAM,
        schedule="ReduceLROnPlateau",
    ) as trainer:
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.step(*batches(1, ROWS)[0], metric=math.inf)
    assert caught.value.field == "hyper_parameters.metric"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_cannot_be_switched_on_or_off(trainers: braid.Client, momentum: float) -> None:
    optimizer = {"name": "SGD", "momentum": momentum}
    with new_trainer(
        trainers, "net", loss="cross_entropy", optimizer=optimizer
    ) as trainer:
        with pytest.raises(braid.InvalidArgument, match="turned on or off") as caught:
            trainer.step(*batches(1, ROWS)[0], momentum=0.9 - momentum)
    assert caught.value.field == "hyper_parameters.momentum"
