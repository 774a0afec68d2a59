"""Ranges of indices for embedding lookups: indices valid in PyTorch are served, and indices outside
a table are rejected before the model runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports, models, programs
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from torch import Tensor, nn

FEW, MANY = 10, 1000
CONFIG = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_INT64 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.few = nn.Embedding(FEW, 3)
        self.many = nn.Embedding(MANY, 3)


class Columns(Tables):
    """Looks up each column in its own table."""

    def forward(self, x: Tensor) -> Tensor:
        return self.few(x[:, 0]) + self.many(x[:, 1])


class Counted(Tables):
    """One column is not an index."""

    def forward(self, x: Tensor) -> Tensor:
        return self.few(x[:, 0]) + x[:, 1:2].float()


class Padded(Tables):
    def forward(self, x: Tensor) -> Tensor:
        x[x == -100] = 0
        return self.few(x).sum(1)


class PaddedCopy(Tables):
    def forward(self, x: Tensor) -> Tensor:
        copy = x.clone()
        copy[copy == -100] = 0
        return self.few(copy).sum(1)


class Clamped(Tables):
    def forward(self, x: Tensor) -> Tensor:
        x.clamp_(0, 9)
        return self.few(x).sum(1)


class Whole(Tables):
    """Looks up all columns in one table, and one column in another."""

    def forward(self, x: Tensor) -> Tensor:
        return self.few(x[:, 0]) + self.many(x).sum(1)


MODELS = {
    "columns": (Columns, [[9, 999], [0, 10]]),
    "counted": (Counted, [[9, 12345], [0, -1]]),
    "padded": (Padded, [[9, -100], [-100, 0]]),
    "padded_copy": (PaddedCopy, [[9, -100], [-100, 0]]),
    "clamped": (Clamped, [[-5, 12345], [3, 4]]),
    "whole": (Whole, [[9, 999], [0, 10]]),
}
# A pair's forward must not write to its input.
HELD = {
    "torchscript": tuple(MODELS),
    "pair": ("columns", "counted", "padded_copy", "whole"),
    "exported": tuple(MODELS),
    "aot": ("columns", "padded_copy", "whole"),  # As compiled by braid.export.
    "compiled": ("columns", "padded", "whole"),  # As compiled by PyTorch.
}


def make(name: str) -> nn.Module:
    torch.manual_seed(7)
    return MODELS[name][0]()


def write(directory: Path, format: str) -> None:
    example = {"x": torch.zeros(3, 2, dtype=torch.int64)}
    for name in HELD[format]:
        folder, module = directory / name, make(name).eval()
        if format == "pair":
            models.export_pair(folder, module, example, CONFIG)
        elif format == "torchscript":
            models.export(folder, module, config=CONFIG)
        elif format == "aot":
            exports.export(module, example, folder, "aot")
        else:
            write = programs.save if format == "exported" else programs.compile
            sizes = programs.any_batch([example["x"]])
            write(folder / "1/model.pt2", module, [example["x"]], sizes)
            (folder / "config.pbtxt").write_text(CONFIG)


@pytest.fixture(scope="module")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """server_of(format): one server for the models in that format."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(format: str) -> Server:
            directory = tmp_path_factory.mktemp(f"ranges-{format}")
            write(directory / "models", format)
            server = Server(directory / "models", "cpu*2", directory / "run", data=False)
            return stack.enter_context(server)

        yield get


@pytest.fixture(scope="module")
def client_of(server_of: Callable[[str], Server]) -> Iterator[Callable[[str], braid.Client]]:
    """client_of(format): a client of that server."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda format: stack.enter_context(braid.connect(server_of(format).address))
        )


@pytest.mark.parametrize(("format", "name"), [(f, name) for f in HELD for name in HELD[f]])
def test_indices_valid_in_pytorch_are_served(
    client_of: Callable[[str], braid.Client], format: str, name: str
) -> None:
    x = np.array(MODELS[name][1], dtype=np.int64)
    outputs = client_of(format).infer(name, {"x": x})
    (served,) = outputs.values()
    assert_close(served, expected(make(name), x.copy()))


@pytest.mark.parametrize("format", HELD)
@pytest.mark.parametrize("index", [-1, MANY])
def test_whole_lookup_checks_all_indices(
    client_of: Callable[[str], braid.Client], format: str, index: int
) -> None:
    x = np.array([[0, 1], [2, index]], dtype=np.int64)
    with pytest.raises(braid.InvalidArgument, match=f"{index} at index 3.*0 to {MANY - 1}"):
        client_of(format).infer("whole", {"x": x})


@pytest.mark.parametrize("format", ["torchscript", "pair", "exported", "aot"])
@pytest.mark.parametrize("index", [-1, FEW])
def test_partial_lookup_checks_only_its_indices(
    client_of: Callable[[str], braid.Client], format: str, index: int
) -> None:
    x = np.array([[0, 1], [index, 2]], dtype=np.int64)
    with pytest.raises(braid.InvalidArgument, match="inputs: .*index.* out of (range|bounds)"):
        client_of(format).infer("columns", {"x": x})


def test_compiled_code_accepting_negative_indices_logs_a_warning(
    server_of: Callable[[str], Server], client_of: Callable[[str], braid.Client]
) -> None:
    """PyTorch before 2.15 compiles such code. For "whole", a range check rejects them."""
    taken = []
    for name in HELD["compiled"]:
        try:
            client_of("compiled").infer(name, {"x": np.full((2, 2), -1)})
        except braid.InvalidArgument:
            continue
        taken.append(name)
    warned = [line for line in server_of("compiled").log.splitlines() if "negative indices" in line]
    assert len(warned) == len(taken) and "whole" not in taken
    assert all("braid.export" in line for line in warned)
    assert not [line for line in server_of("aot").log.splitlines() if "negative indices" in line]
