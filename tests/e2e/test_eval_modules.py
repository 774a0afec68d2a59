"""Training with submodules in evaluation mode equals PyTorch's with `.eval()` on them."""

from __future__ import annotations

import re

import braid
import pytest
from e2e.support import oracle, training, training_models
from e2e.support.oracle import Run, assert_equal_runs
from e2e.support.reference import make_optimizer
from e2e.support.training import MANY_STEPS, classes, new_trainer, on, rows
from torch import Tensor
from torch.nn import functional

STEPS = 5
ROWS = 11
SEED = 3
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}
FROZEN = [{"pattern": "^backbone", "frozen": True}]
TWO_STAGES = [
    {"path": "backbone", "devices": ["cpu:0", "cpu:1"]},
    {"path": "head", "devices": ["cpu:2"]},
]


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(rows(ROWS, 6, seed=s) + 1, classes(ROWS, of=4, seed=s)) for s in range(STEPS)]


def reference(groups: list[dict], replicas: int, stages: bool) -> Run:
    """Trains in PyTorch with the backbone in evaluation mode, so that only the head is random."""
    module = training_models.make("backbone").train()
    module.backbone.eval()
    stepper = make_optimizer(module, SGD, groups)
    losses = []
    for step, (x, target) in enumerate(batches(), 1):
        part, given = (module.head, module.backbone(x)) if stages else (module, x)
        name = "input" if stages else "x"
        output = oracle.seeded_forward_in_chunks(
            part, {name: given}, replicas, SEED, step, stage=int(stages)
        )
        loss = functional.cross_entropy(output, target)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return Run(losses, oracle.state_of(module))


def run(client: braid.Client, groups: list[dict], stages: list[dict]) -> Run:
    with new_trainer(
        client,
        "backbone",
        loss="cross_entropy",
        optimizer=SGD,
        parameter_groups=groups,
        stages=stages,
        seed=SEED,
        eval_modules=["^backbone$"],
    ) as trainer:
        assert trainer.info().options["eval_modules"] == ["^backbone$"]
        losses = [trainer.step({"x": x}, {"target": y}).loss for x, y in batches()]
        return Run(losses, trainer.state_dict())


@pytest.mark.parametrize("groups", [[], FROZEN], ids=["all", "head"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_training_equals_pytorch(
    trainers: braid.Client, groups: list[dict], replicas: int
) -> None:
    actual = run(trainers, groups, on(replicas))
    assert_equal_runs(actual, reference(groups, replicas, stages=False), MANY_STEPS)
    before = oracle.state_of(training_models.make("backbone"))
    changed = {name for name in before if actual.state[name].tobytes() != before[name].tobytes()}
    trained = "weight|bias" if not groups else "^head"
    assert changed == {name for name in before if re.search(trained, name)}


@pytest.mark.parametrize("groups", [[], FROZEN], ids=["all", "head"])
def test_stages_equal_pytorch(trainers: braid.Client, groups: list[dict]) -> None:
    actual = run(trainers, groups, TWO_STAGES)
    assert_equal_runs(actual, reference(groups, 1, stages=True), MANY_STEPS)


def test_evaluation_batch_norm_trains_on_one_row(trainers: braid.Client) -> None:
    x, target = rows(1, 6), classes(1, of=4)
    options = {"loss": "cross_entropy", "optimizer": SGD, "stages": on(1)}
    with new_trainer(trainers, "backbone", eval_modules=["^backbone$"], **options) as trainer:
        trainer.step({"x": x}, {"target": target})
    with new_trainer(trainers, "backbone", **options) as trainer:
        with pytest.raises(braid.InvalidArgument, match="more than 1 value per channel"):
            trainer.step({"x": x}, {"target": target})


def test_pattern_without_a_module_is_rejected(trainers: braid.Client) -> None:
    with pytest.raises(braid.InvalidArgument) as caught:
        trainers.create_trainer(
            "backbone", loss="mse", optimizer="SGD", eval_modules=["^backbone$", "bn1"]
        )
    assert caught.value.field == "options.eval_modules[1]"
    for part in ('"bn1" matches no submodule', "'backbone', 'backbone.0'", "9 in all"):
        assert part in caught.value.message


@pytest.mark.parametrize("training_server", ["pair"], indirect=True)
def test_pair_needs_an_export_for_the_modules(trainers: braid.Client) -> None:
    for model, patterns, parts in (
        ("backbone", [r"backbone\.1"], ("modules 'backbone', 'backb", "asks for 'backbone.1'")),
        ("net", [r"layers\.0"], ("without eval_modules", "asks for 'layers.0'")),
    ):
        with pytest.raises(braid.InvalidArgument) as caught:
            trainers.create_trainer(model, loss="mse", optimizer="SGD", eval_modules=patterns)
        assert caught.value.field == "options.eval_modules"
        for part in (*parts, "pass the same eval_modules to braid.export"):
            assert part in caught.value.message
