"""Every loss, reduction and parameter equals PyTorch's on three replicas."""

from __future__ import annotations

from collections.abc import Callable

import braid
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference
from e2e.support.training import ONE_STEP, classes, new_trainer, on, rows
from torch import Tensor, nn
from torch.nn import functional

ROWS = 7
SGD = {"name": "SGD", "lr": 0.1}
WEIGHTS = [0.5, 2.0, 0.0, 1.0, 3.0]
POSITIVE = [0.5, 2.0, 0.25, 1.0, 3.0]


def spec(name: str, **parameters) -> dict:
    return {"name": name, **parameters}


def probabilities() -> Tensor:
    return rows(ROWS, 5, seed=1).softmax(1)


def some_ignored(index: int) -> Tensor:
    """All targets of the first chunk are ignored."""
    labels = classes(ROWS)
    labels[:3] = index
    return labels


# Model, loss, target.
CASES = [
    ("net", spec("cross_entropy"), classes(ROWS)),
    ("net", spec("cross_entropy", label_smoothing=0.1), classes(ROWS)),
    ("net", spec("cross_entropy", weight=WEIGHTS), classes(ROWS)),
    ("net", spec("cross_entropy", weight=POSITIVE, label_smoothing=0.3), classes(ROWS)),
    ("net", spec("cross_entropy"), some_ignored(-100)),
    ("net", spec("cross_entropy", ignore_index=2, weight=WEIGHTS), some_ignored(2)),
    ("net", spec("cross_entropy"), probabilities()),
    ("net", spec("cross_entropy", label_smoothing=0.2, weight=POSITIVE), probabilities()),
    ("cells", spec("cross_entropy", weight=[1.0, 2.0, 3.0]), classes(ROWS, 4, of=3)),
    ("cells", spec("nll"), classes(ROWS, 4, of=3)),
    ("cells", spec("nll", weight=[1.0, 2.0, 0.5], ignore_index=1), classes(ROWS, 4, of=3)),
    ("net", spec("mse"), rows(ROWS, 5, seed=2)),
    ("net", spec("l1"), rows(ROWS, 5, seed=2)),
    ("net", spec("smooth_l1"), rows(ROWS, 5, seed=2)),
    ("net", spec("smooth_l1", beta=0.3), rows(ROWS, 5, seed=2)),
    ("net", spec("huber"), 3 * rows(ROWS, 5, seed=2)),
    ("net", spec("huber", delta=2.5), 3 * rows(ROWS, 5, seed=2)),
    ("net", spec("bce_with_logits"), probabilities()),
    ("net", spec("bce_with_logits", pos_weight=[3.0]), probabilities()),
    ("net", spec("bce_with_logits", pos_weight=[3.0, 1.0, 0.5, 2.0, 0.0]), probabilities()),
    ("cells", spec("bce_with_logits", pos_weight=[[3.0], [0.5], [2.0]]),
     rows(ROWS, 3, 4, seed=4).sigmoid()),
    ("cells", spec("bce_with_logits", pos_weight=[[[1.0, 3.0, 0.5, 2.0]]]),
     rows(ROWS, 3, 4, seed=4).sigmoid()),
    ("cells", spec("kl_div"), rows(ROWS, 3, 4, seed=3).softmax(1)),
    ("cells", spec("kl_div", log_target=True), rows(ROWS, 3, 4, seed=3).log_softmax(1)),
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("mode", ["central", "per_replica"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("model", "loss", "target"),
    CASES,
    ids=["-".join([loss["name"], *list(loss)[1:]]) for _, loss, _ in CASES],
)
def test_loss_equals_pytorch(
    trainers: braid.Client, model: str, loss: dict, target: Tensor, reduction: str, mode: str
) -> None:
    x = rows(ROWS, 10 if model == "net" else 6)
    training.compare(
        trainers,
        model,
        [({"x": x}, {"target": target})],
        SGD,
        {**loss, "reduction": reduction},
        tolerance=10 * ONE_STEP,
        loss_mode=mode,
    )


@pytest.mark.parametrize("options", [
    {}, {"loss_mode": "per_replica"}, {"micro_batch": 2},
    {"loss_mode": "per_replica", "micro_batch": 2},
])
def test_kl_div_divided_by_the_rows_equals_pytorch(
    trainers: braid.Client, options: dict
) -> None:
    batch = ({"x": rows(ROWS, 6)}, {"target": rows(ROWS, 3, 4, seed=3).softmax(1)})
    loss = spec("kl_div", reduction="batchmean")
    training.compare(trainers, "cells", [batch], SGD, loss, tolerance=ONE_STEP, **options)


@pytest.mark.parametrize("output", [None, "classes", "value"])
def test_loss_uses_its_named_output(
    trainers: braid.Client, output: str | None
) -> None:
    """The first output by default, or the named one."""
    loss = {"name": "mse", "target": "wanted", **({"output": output} if output else {})}
    target = rows(ROWS, 1 if output == "value" else 4)
    batch = ({"x": rows(ROWS, 6)}, {"wanted": target})
    training.compare(trainers, "heads", [batch], SGD, loss, tolerance=ONE_STEP)


class Focal(nn.Module):
    """A loss that LibTorch does not have, with constant parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        chosen = output.log_softmax(1).gather(1, target.unsqueeze(1))
        return (-((1 - chosen.exp()) ** self.gamma) * chosen).mean()


def script(module: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", ["central", "per_replica"])
def test_loss_module_equals_pytorch(trainers: braid.Client, mode: str) -> None:
    focal = Focal()

    def loss_of(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return focal(outputs["output__0"], targets["target"])

    batches = training.batches(20, ROWS)
    wanted = Reference("net", SGD, loss_of).train(batches)
    actual = training.run(
        trainers, "net", batches, loss=script(focal), optimizer=SGD, loss_mode=mode
    )
    training.assert_equal_runs(actual, wanted, training.MANY_STEPS)


class OfOneElement(nn.Module):
    """The loss has a dimension, and modifies its arguments."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        target.mul_(2.0)
        return (output - target).square().sum().view(1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loss_module_next_to_another_loss(trainers: braid.Client) -> None:
    """The two share a target. The module gets a copy."""
    losses = [
        {"name": "module", "module": script(OfOneElement()), "reduction": "sum", "factor": 0.5},
        {"name": "mse"},
    ]

    def loss_of(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        output, target = outputs["output__0"], targets["target"]
        return 0.5 * (output - 2 * target).square().sum() + functional.mse_loss(output, target)

    batches = [({"x": rows(ROWS, 10)}, {"target": rows(ROWS, 5, seed=1)})] * 3
    wanted = Reference("net", SGD, loss_of).train(batches)
    for mode in ("central", "per_replica"):
        actual = training.run(
            trainers, "net", batches, loss=losses, optimizer=SGD, loss_mode=mode
        )
        training.assert_equal_runs(actual, wanted, training.MANY_STEPS)


class Dice(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        p = output.sigmoid()
        return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


class MaskedMean(nn.Module):
    """Mean over targets that are not 0; NaN for a part without any."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        mask = (target != 0).double()
        return ((output - target).square() * mask).sum() / mask.sum()


class SquaredSum(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum()


class InBatchNegatives(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output @ target.t(), torch.arange(output.size(0)))


class CrossEntropy(nn.Module):
    """Mean over the rows whose target is not -100."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)


def padded(count: int, seed: int = 0) -> Tensor:
    """Positive values with the first five rows masked."""
    target = rows(count, 5, seed=seed).abs()
    target[:5] = 0
    return target


PARTS = [
    pytest.param({"loss_mode": "per_replica"}, id="per_replica"),
    pytest.param({"micro_batch": 2}, id="micro_batch"),
    pytest.param({"loss_mode": "per_replica", "micro_batch": 2}, id="both"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options", PARTS)
@pytest.mark.parametrize("loss", [Dice, MaskedMean, SquaredSum, InBatchNegatives])
def test_non_mean_loss_module_is_not_split(
    trainers: braid.Client, loss: type[nn.Module], options: dict
) -> None:
    batch = ({"x": rows(ROWS, 10)}, {"target": padded(ROWS)})
    with new_trainer(
        trainers, "net", stages=on(3), loss=script(loss()), optimizer=SGD, **options
    ) as trainer:
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward, trainer.forward):
            with pytest.raises(braid.FailedPrecondition, match=r"losses\[0\].module: ") as refused:
                operate(*batch)
            assert "expected a mean over rows" in refused.value.message
            assert "use loss_mode central without micro_batch" in refused.value.message
        training.assert_unchanged(before, trainer.state_dict())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options, replicas", [
    ({"loss_mode": "central"}, 3), ({"loss_mode": "per_replica"}, 1),
])
@pytest.mark.parametrize("loss", [Dice, MaskedMean, SquaredSum, InBatchNegatives])
def test_non_mean_loss_module_equals_pytorch_on_the_whole_batch(
    trainers: braid.Client, loss: type[nn.Module], options: dict, replicas: int
) -> None:
    batches = [({"x": rows(ROWS, 10, seed=s)}, {"target": padded(ROWS, s)}) for s in range(3)]

    def loss_of(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return loss()(outputs["output__0"], targets["target"])

    wanted = Reference("net", SGD, loss_of).train(batches)
    actual = training.run(
        trainers, "net", batches, replicas, loss=script(loss()), optimizer=SGD, **options
    )
    training.assert_equal_runs(actual, wanted, training.MANY_STEPS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options", PARTS)
def test_loss_module_is_checked_again_for_other_targets(
    trainers: braid.Client, options: dict
) -> None:
    """Cross-entropy is a mean over rows until a target is ignored."""
    batches = training.batches(3, ROWS)
    ignoring = ({"x": rows(ROWS, 10)}, {"target": classes(ROWS)})
    ignoring[1]["target"][5] = -100
    wanted = Reference("net", SGD, "cross_entropy").train(batches)
    with new_trainer(
        trainers, "net", stages=on(3), loss=script(CrossEntropy()), optimizer=SGD, **options
    ) as trainer:
        losses = [trainer.step(*batch).loss for batch in batches]
        state = trainer.state_dict()
        training.assert_equal_runs(training.Run(losses, state), wanted, training.MANY_STEPS)
        with pytest.raises(braid.FailedPrecondition, match="expected a mean over rows"):
            trainer.step(*ignoring)
        training.assert_unchanged(state, trainer.state_dict())
        trainer.step(*batches[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options", PARTS)
def test_row_sum_loss_is_split_with_reduction_sum(
    trainers: braid.Client, options: dict
) -> None:
    batches = [({"x": rows(ROWS, 10, seed=s)}, {"target": padded(ROWS, s)}) for s in range(3)]
    slow = {"name": "SGD", "lr": 1e-3}

    def loss_of(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return SquaredSum()(outputs["output__0"], targets["target"])

    loss = {"name": "module", "module": script(SquaredSum()), "reduction": "sum"}
    wanted = Reference("net", slow, loss_of).train(batches)
    actual = training.run(trainers, "net", batches, loss=loss, optimizer=slow, **options)
    training.assert_equal_runs(actual, wanted, training.MANY_STEPS)


@pytest.mark.parametrize("call", ["forward", "step", "forward_backward"])
def test_loss_uses_the_weights_before_the_update(
    trainers: braid.Client, call: str
) -> None:
    """All three operations compute the same loss."""
    x, labels = rows(ROWS, 10), classes(ROWS)
    wanted = Reference("net", SGD, "cross_entropy").accumulate({"x": x}, {"target": labels})
    with new_trainer(
        trainers, "net", loss="cross_entropy", optimizer=SGD, stages=on(3)
    ) as trainer:
        operate: Callable = getattr(trainer, call)
        assert operate({"x": x}, {"target": labels}).loss == pytest.approx(wanted, abs=1e-12)
