"""Models with operators of other libraries: torchvision's nms."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
import tritonclient.grpc as triton
from e2e.support.inference import infer_input
from e2e.support.server import Server, run_to_exit
from torch import Tensor, nn

CONFIG = """
max_batch_size: 0
input [
  { name: "boxes" data_type: TYPE_FP32 dims: [ -1, 4 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: "kept" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""

PYTHON = Path(sysconfig.get_config_var("LIBDIR") or "/") / (
    sysconfig.get_config_var("INSTSONAME") or ""
)
# The wheel's library needs LibTorch's Python library, which needs Python's.
LIBRARIES = [
    PYTHON,
    Path(torch.__file__).parent / "lib/libtorch_python.so",
    *Path(torchvision.__file__).parent.glob("_C*.so"),  # _C_stable.so in newer releases.
]


class Suppress(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor) -> Tensor:
        return torchvision.ops.nms(boxes, scores, 0.5)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    model = tmp_path / "models/suppress"
    (model / "1").mkdir(parents=True)
    torch.jit.script(Suppress()).save(str(model / "1/model.pt"))
    (model / "config.pbtxt").write_text(CONFIG)
    return model.parent


@pytest.mark.skipif(not PYTHON.is_file(), reason="this Python has no shared library")
def test_configured_library_provides_operators(repository: Path, tmp_path: Path) -> None:
    flag = f"--operator_libraries={','.join(map(str, LIBRARIES))}"
    corners = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    boxes = torch.cat([corners, corners + 0.5], 1)
    scores = torch.linspace(0, 1, 20)
    server = Server(repository, "cpu*2", tmp_path / "run", (flag,))
    with server, triton.InferenceServerClient(server.address) as client:
        inputs = [infer_input("boxes", boxes.numpy()), infer_input("scores", scores.numpy())]
        kept = client.infer("suppress", inputs).as_numpy("kept")
    np.testing.assert_array_equal(kept, torchvision.ops.nms(boxes, scores, 0.5).numpy())


def test_missing_operator_is_reported(repository: Path, tmp_path: Path) -> None:
    server = Server(repository, "cpu*1", tmp_path / "run")
    with server, triton.InferenceServerClient(server.address) as client:
        (model,) = client.get_model_repository_index().models
    assert model.state == "UNAVAILABLE"
    assert "torchvision::nms" in model.reason


def test_unloadable_library_fails_the_start(repository: Path, tmp_path: Path) -> None:
    no_library = tmp_path / "libnone.so"
    done = run_to_exit(
        f"--model_repository={repository}", f"--operator_libraries={no_library}", "--grpc_port=0"
    )
    assert done.returncode == 2
    assert "--operator_libraries" in done.stderr
    assert f"'{no_library}' cannot be loaded" in done.stderr
