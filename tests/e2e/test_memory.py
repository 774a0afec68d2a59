"""Memory of trainers, and steps without enough memory."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports, models, training, training_models
from e2e.support.reference import Reference
from e2e.support.server import Server
from e2e.support.training import batches, new_trainer, on, rows
from torch import Tensor, nn

MIB = 1 << 20
ADAM = {"name": "Adam", "lr": 0.1}
ROWS = 64


def test_memory_is_reported_per_device(trainers: braid.Client) -> None:
    """Counts parameters (in the primary's memory on CPUs), gradients and, after an update, Adam's two
    averages. The primary has its buffers twice. A step's peak is higher than the permanent memory."""
    parameters = sum(p.numel() * 8 for p in training_models.make("net").parameters())
    with new_trainer(
        trainers,
        "net",
        stages=on(3),
        loss="cross_entropy",
        optimizer=ADAM,
        sync="reduce_broadcast",
    ) as trainer:
        before = trainer.info().memory
        trainer.step(*batches(1, 300)[0])
        after = trainer.info().memory
    assert [each.device for each in before] == [each.device for each in after] == [
        "cpu:0",
        "cpu:1",
        "cpu:2",
    ]
    for copies, each in zip((2, 1, 1), before, strict=True):
        # Every parameter is aligned to 64 bytes.
        least = copies * parameters
        assert least <= each.current_bytes < least + 2 * 6 * 64
    assert after[0].current_bytes - before[0].current_bytes == 2 * parameters
    assert [each.current_bytes for each in after[1:]] == [each.current_bytes for each in before[1:]]
    for each in after:
        # At least the first layer's activations for 100 rows.
        assert each.peak_bytes >= each.current_bytes + 100 * 8 * 8


class Adapted(nn.Module):
    """64 MiB that are frozen, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4096, 4096, bias=False).requires_grad_(False)
        self.head = nn.Linear(4096, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x))


@pytest.mark.parametrize("format", training_models.FORMATS)
def test_trainers_and_versions_share_frozen_memory(tmp_path: Path, format: str) -> None:
    x = torch.randn(2, 4096)
    exports.export(Adapted(), {"x": x}, tmp_path / "models/adapted", format)
    batch = {"x": x.numpy()}, {"target": np.zeros(2, np.int64)}
    with Server(tmp_path / "models", "cpu*2", tmp_path / "run", data=False) as server:
        with braid.connect(server.address) as client:

            def train(name: str) -> None:
                trainer = client.create_trainer(
                    "adapted", name=name, loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
                )
                trainer.step(*batch)
                trainer.publish()
                trainer.step(*batch)

            train("first")
            before = server.resident_bytes()
            for index in range(8):
                train(f"other{index}")
            assert server.resident_bytes() - before < 64 * MIB


@pytest.fixture(scope="module")
def short_of_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    """A client of a server that may allocate 640 MiB more: not 16 MiB for each of 64 rows."""
    directory: Path = tmp_path_factory.mktemp("short")
    hungry = training_models.make("hungry")
    models.export(
        directory / "models/hungry", hungry, inputs=[torch.zeros(1, 2, dtype=torch.float64)]
    )
    with Server(
        directory / "models", "cpu*2", directory / "run", ("--cpu_threads=1",), data=False
    ) as server:
        with braid.connect(server.address) as client:
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            size = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) * 1024
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size + 640 * MIB,) * 2)
            yield client


def big() -> tuple:
    return {"x": rows(ROWS, 2)}, {"target": rows(ROWS, 1, seed=1)}


def test_step_without_enough_memory_is_rejected(short_of_memory: braid.Client) -> None:
    """The error names the device and the needed and free memory. The trainer does not change."""
    small = {"x": rows(2, 2)}, {"target": rows(2, 1)}
    wanted = Reference("hungry", ADAM, "mse")
    with new_trainer(
        short_of_memory, "hungry", stages=on(2), loss="mse", optimizer=ADAM
    ) as trainer:
        trainer.step(*small)
        trainer.forward_backward(*small)
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward, trainer.forward):
            with pytest.raises(braid.ResourceExhausted) as caught:
                operate(*big())
            assert re.search(r"cpu:[01]", caught.value.message), caught.value.message
            assert str(ROWS // 2 * 16 * MIB) in caught.value.message
            assert re.search(r"\d+ (bytes )?are (available|free)", caught.value.message)
        training.assert_unchanged(before, trainer.state_dict())
        trainer.step(*small)
        wanted.step(*small)
        for _ in range(2):
            wanted.accumulate(*small)
        wanted.update()
        training.assert_state(trainer, wanted, 1e-9)


def test_micro_batches_fit_in_memory(short_of_memory: braid.Client) -> None:
    with new_trainer(
        short_of_memory, "hungry", stages=on(2), loss="mse", optimizer=ADAM, micro_batch=2
    ) as trainer:
        loss = trainer.step(*big()).loss
        wanted = Reference("hungry", ADAM, "mse")
        # The mean of equal values is that value, so the reference needs no memory.
        wanted.outputs = lambda inputs: {"output__0": wanted.module.linear(inputs["x"])}
        assert loss == pytest.approx(wanted.step(*big()), rel=1e-9)
        training.assert_state(trainer, wanted, 1e-9)
        peak = max(each.peak_bytes for each in trainer.info().memory)
    assert 2 * 16 * MIB <= peak < ROWS // 2 * 16 * MIB


class Vast(nn.Module):
    """Allocates memory for each row after the second, but does not touch it."""

    def __init__(self, bytes_per_row: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.bytes_per_row = bytes_per_row

    def forward(self, x: Tensor) -> Tensor:
        held: list[Tensor] = []
        for _ in range(x.size(0) - 2):
            held.append(torch.empty([self.bytes_per_row], dtype=torch.uint8))
        return self.linear(x) / (1 + len(held))


def available_bytes() -> int:
    """Returns the available memory of the machine or the container."""
    meminfo = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
    available = [(int(meminfo["MemAvailable"]) + int(meminfo["SwapFree"])) * 1024]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup") / name
        if limit.exists() and limit.read_text().strip().isdigit():
            available.append(int(limit.read_text()))
    return min(available)


def test_memory_is_reserved_before_use(tmp_path: Path) -> None:
    """A step is rejected before it uses memory for which the system would kill the process."""
    bytes_per_row = available_bytes() // 8
    module = Vast(bytes_per_row).double()
    example = torch.zeros(1, 2, dtype=torch.float64)
    models.export(tmp_path / "models/vast", module, inputs=[example])
    small = {"x": rows(2, 2)}, {"target": rows(2, 1)}
    with Server(tmp_path / "models", "cpu*2", tmp_path / "run", data=False) as server:
        with (
            braid.connect(server.address) as client,
            new_trainer(client, "vast", stages=on(2), loss="mse", optimizer=ADAM) as trainer,
        ):
            trainer.step(*small)
            before = trainer.state_dict()
            with pytest.raises(braid.ResourceExhausted) as caught:
                trainer.step(*big())
            message = caught.value.message
            sizes = re.search(
                r"cpu:[01]: .* cannot allocate (\d+) bytes, (\d+) are available", message
            )
            assert sizes, message
            assert int(sizes[1]) == bytes_per_row > int(sizes[2])
            training.assert_unchanged(before, trainer.state_dict())
            # The rejected step has released its memory.
            trainer.step({"x": rows(6, 2)}, {"target": rows(6, 1)})
