"""Training equals PyTorch's for any placement of the model's parts and the loss."""

from __future__ import annotations

import braid
import pytest
from e2e.support import training
from e2e.support.training import batches, classes, new_trainer, on, rows

ROWS = 11
STEPS = 5
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ALL = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]


def stages(features: list[str], classifier: list[str]) -> list[dict]:
    return [
        {"path": "features", "devices": features},
        {"path": "classifier", "devices": classifier},
    ]


# Name → features' and classifier's devices.
PLACEMENTS = {
    "submodule on all, the rest on the primary": (ALL, ["cpu:0"]),
    "one part here, one there": (["cpu:0"], ["cpu:1"]),
    "both on all": (ALL, ALL),
    "more than before": (["cpu:3"], ["cpu:0", "cpu:1", "cpu:2"]),
    "other cuts": (["cpu:0", "cpu:1", "cpu:2"], ["cpu:2", "cpu:3"]),
    "same devices, another order": (["cpu:0", "cpu:1"], ["cpu:1", "cpu:0"]),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sync": "all_reduce", "clip_grad_norm": 1e3},
        {"loss_mode": "per_replica"},
        {"output_device": "cpu:2"},
        {"micro_batch": 2},
    ],
    ids=["plain", "all_reduce", "per_replica", "output", "micro_batch"],
)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_stages_equal_pytorch(trainers: braid.Client, placement: str, options: dict) -> None:
    training.compare(
        trainers,
        "staged",
        batches(STEPS, ROWS),
        SGD,
        "cross_entropy",
        stages=stages(*PLACEMENTS[placement]),
        **options,
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_stages_with_fewer_rows_than_replicas(trainers: braid.Client, count: int) -> None:
    training.compare(
        trainers,
        "staged",
        batches(STEPS, count),
        SGD,
        "cross_entropy",
        stages=stages(ALL, ["cpu:2", "cpu:3"]),
    )


def test_groups_and_names_span_all_stages(trainers: braid.Client) -> None:
    groups = [{"pattern": r"^features\.0", "frozen": True}, {"pattern": r"^classifier", "lr": 0.5}]
    training.compare(
        trainers,
        "staged",
        batches(STEPS, ROWS),
        SGD,
        "cross_entropy",
        groups=groups,
        stages=stages(["cpu:1", "cpu:2"], ["cpu:0"]),
    )


@pytest.mark.parametrize(
    "devices", [["cpu:2"], ["cpu:3", "cpu:0"], ["cpu:1", "cpu:2", "cpu:3"]], ids="-".join
)
def test_first_device_is_the_primary(trainers: braid.Client, devices: list[str]) -> None:
    with new_trainer(
        trainers, "net", stages=[{"devices": devices}], loss="cross_entropy", optimizer=SGD
    ) as trainer:
        info = trainer.info()
        assert info.devices == tuple(devices)
        assert info.options["output_device"] == devices[0]
        chunks = trainer.step(*batches(1, ROWS)[0], report_split=True).chunks
        assert [chunk.device for chunk in chunks] == devices
    training.compare(
        trainers,
        "net",
        batches(STEPS, ROWS),
        SGD,
        "cross_entropy",
        stages=[{"devices": devices}],
    )


@pytest.mark.parametrize("output", ["host", "cpu:0", "cpu:1", "cpu:3"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_output_device_may_be_any_device(trainers: braid.Client, output: str, loss: str) -> None:
    """The primary, another replica's device, a device without a replica, and host memory."""
    target = classes(ROWS) if loss == "cross_entropy" else rows(ROWS, 5, seed=1)
    batch = ({"x": rows(ROWS, 10)}, {"target": target})
    training.compare(
        trainers, "net", [batch] * STEPS, SGD, loss, replicas=3, output_device=output
    )


def test_loss_runs_on_the_output_device(trainers: braid.Client) -> None:
    def seconds(device: str) -> float:
        of = {each.name: each for each in trainers.devices()}
        return of[device].busy_seconds.get("loss", 0.0)

    with new_trainer(
        trainers,
        "net",
        stages=on(2),
        loss="cross_entropy",
        optimizer=SGD,
        output_device="cpu:3",
    ) as trainer:
        before = {device: seconds(device) for device in ALL}
        trainer.step(*batches(1, ROWS)[0])
        busy = [device for device in ALL if seconds(device) > before[device]]
        assert trainer.info().devices == ("cpu:0", "cpu:1")
    assert busy == ["cpu:3"]


def test_single_device_has_no_copy_time(trainers: braid.Client) -> None:
    """On a single device, phases that copy between devices take almost no time."""
    with new_trainer(
        trainers, "net", stages=on(1), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        phases = trainer.step(*batches(1, ROWS)[0]).phases
    assert phases["forward"] > 0
    assert phases["broadcast"] < phases["forward"]
