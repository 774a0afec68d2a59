"""Models exported in training mode, and sparse outputs: warnings and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import inference_packages, models, programs
from e2e.support.server import Server
from torch import Tensor, nn
from torch.nn import functional

ROWS = torch.ones(4, 3)
CONFIG = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear(x))


class Normed(nn.Module):
    """Changes its running statistics and does not count batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.mean, self.variance, training=True)


class Sparse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to_sparse()


def save(path: Path, module: nn.Module) -> None:
    """Saves the module in its present mode, not in evaluation mode."""
    path.parent.mkdir(parents=True)
    program = torch.export.export(module, (ROWS,), dynamic_shapes=programs.any_batch([ROWS]))
    torch.export.save(program, path)


def trace(folder: Path, module: nn.Module) -> None:
    (folder / "1").mkdir(parents=True)
    torch.jit.trace(module, (ROWS,), check_trace=False).save(str(folder / "1/model.pt"))
    (folder / "config.pbtxt").write_text(CONFIG)


def compile(path: Path, module: nn.Module) -> None:
    path.parent.mkdir(parents=True)
    program = torch.export.export(module, (ROWS,), dynamic_shapes=programs.any_batch([ROWS]))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("training-mode")
    repository = directory / "models"
    save(repository / "program/1/model.pt2", Dropped().train())
    save(repository / "program_eval/1/model.pt2", Dropped().eval())
    save(repository / "program_norm/1/model.pt2", Normed())
    trace(repository / "traced", Dropped().train())
    trace(repository / "traced_eval", Dropped().eval())
    models.export(repository / "scripted", Dropped().train(), config=CONFIG)
    compile(repository / "compiled/1/model.pt2", Dropped().train())
    compile(repository / "compiled_norm/1/model.pt2", nn.BatchNorm1d(3).train())
    models.export(repository / "sparse", Sparse(), config=CONFIG)
    models.export(repository / "sparse_example", Sparse(), inputs=[ROWS])
    with Server(repository, "cpu*2", directory / "run", data=False) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[braid.Client]:
    with braid.connect(server.address) as client:
        yield client


def test_active_dropout_logs_a_warning(server: Server) -> None:
    lines = [line for line in server.log.splitlines() if "in training mode" in line]
    for name in ("program", "traced", "compiled"):
        (line,) = (line for line in lines if f"/{name}/1/" in line and "WARN" in line.upper())
        assert "dropout" in line and "eval()" in line
    for name in ("program_eval", "traced_eval", "scripted"):
        assert not [line for line in lines if f"/{name}/" in line]


@pytest.mark.parametrize("model", ["program_norm", "compiled_norm"])
def test_batch_norm_in_training_mode_is_rejected(client: braid.Client, model: str) -> None:
    inference_packages.assert_unavailable(client, model, "changes its buffer")
    inference_packages.assert_unavailable(client, model, "evaluation mode")


def test_sparse_output_is_rejected(client: braid.Client) -> None:
    for rows in (1, 4):
        with pytest.raises(braid.FailedPrecondition, match=r"output 'y'.*Sparse.*to_dense\(\)"):
            client.infer("sparse", {"x": np.ones((rows, 3), np.float32)})
    inference_packages.assert_unavailable(client, "sparse_example", "to_dense()")


@pytest.mark.parametrize("format", ["pair", "torchscript"])
def test_sparse_output_is_rejected_at_export(tmp_path: Path, format: str) -> None:
    with pytest.raises(braid.ExportError, match=r"output 'output__0' is torch.sparse_coo.*to_dense"):
        braid.export(Sparse(), (ROWS,), tmp_path, format)
