"""Compiled convolutions accept any number of rows."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402

nn = torch.nn


@pytest.mark.parametrize(
    ("module", "row"),
    [
        (nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 1)), (3, 20)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)), (3, 20, 20)),
        (nn.Sequential(nn.ConvTranspose2d(3, 8, 3, stride=2), nn.ReLU()), (3, 9, 9)),
        (nn.Sequential(nn.Conv3d(3, 8, 3), nn.ReLU(), nn.Conv3d(8, 4, 1)), (3, 9, 9, 9)),
    ],
    ids=["one dimension", "two dimensions", "two dimensions, transposed", "three dimensions"],
)
def test_compiled_convolution_accepts_any_number_of_rows(tmp_path, monkeypatch, module, row):
    # Without this, the package does not check the bounds of its sizes.
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    export = braid.export(module.eval(), (torch.randn(3, *row),), tmp_path / "m", "aot")
    compiled = torch._inductor.aoti_load_package(str(export.path / "model.pt2"))
    for rows in (1, 2, 15, 16, 64, 257):
        input = torch.randn(rows, *row)
        with torch.no_grad():
            torch.testing.assert_close(compiled(input=input)[0], module(input))
