"""A batch that is not dim 0, such as [time, batch, features]."""

import json
import zipfile

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from torch import nn  # noqa: E402

DIMS = {"x": 1, "y": 1}


class Recurrent(nn.Module):
    """Returns [time, batch, 2], and the mean over time [batch, 2]."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        result = self.last(self.gru(x.view(x.shape[0], -1, 3))[0])
        return {"y": result, "mean": result.mean(0)}


class Scaled(nn.Module):
    def forward(self, x, scale):
        return {"y": x * scale[None, :, None]}


class Centered(nn.Module):
    def forward(self, x):
        return {"y": x - x.mean(1, keepdim=True)}


def export(tmp_path, module=None, x=(5, 4, 3), **options):
    options = {"batch_dim": DIMS, "precisions": [], **options}
    module = Recurrent() if module is None else module
    return braid.export(module, {"x": torch.randn(x)}, tmp_path / "m", **options)


def train_json(result):
    with zipfile.ZipFile(result.path / "model.pt2") as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("train.json"))
        return json.loads(archive.read(name))


def config_of(tmp_path):
    return (tmp_path / "m" / "config.pbtxt").read_text()


@pytest.mark.parametrize("format", ["pair", "torchscript"])
def test_the_batch_dim_is_in_the_configuration(tmp_path, format):
    module = Recurrent()
    result = export(tmp_path, module, format=format, dynamic={"x": {0: ("time", 1, 50)}})
    assert result.format == format
    text = config_of(tmp_path)
    assert "max_batch_size: 256" in text
    assert 'name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ]' in text
    assert 'name: "mean" data_type: TYPE_FP32 dims: [ 2 ]' in text
    for name in ("x", "y"):
        assert f'parameters {{ key: "batch_dim.{name}" value {{ string_value: "1" }} }}' in text
    assert "batch_dim.mean" not in text
    assert "forward" not in vars(module)


def test_a_pair_has_the_batch_as_dim_0(tmp_path):
    manifest = train_json(export(tmp_path, dynamic={"x": {0: ("time", 1, 50)}}))
    assert manifest["schema_version"] == 3
    (x,) = manifest["parts"][0]["inputs"]
    assert (x["shape"], x["batch_dim"]) == (["batch", "time", 3], 1)
    y, mean = manifest["parts"][0]["outputs"]
    assert (y["shape"], y["batch_dim"]) == (["batch", "time", 2], 1)
    assert "batch_dim" not in mean


def test_a_torchscript_module_keeps_its_layout(tmp_path):
    module = Recurrent().eval()
    result = export(tmp_path, module, format="torchscript")
    script = torch.jit.load(result.path / "model.pt")
    x = torch.randn(5, 3, 3)
    torch.testing.assert_close(script(x)["y"], module(x)["y"])


def test_inputs_may_have_different_batch_dims(tmp_path):
    given = {"x": torch.randn(5, 4, 3), "scale": torch.randn(4)}
    result = braid.export(Scaled(), given, tmp_path / "m", batch_dim=DIMS)
    shapes = [each["shape"] for each in train_json(result)["parts"][0]["inputs"]]
    assert shapes == [["batch", 5, 3], ["batch"]]


def test_dims_of_a_model_that_is_not_merged_include_the_batch(tmp_path):
    result = export(tmp_path, Centered())
    assert "max_batch_size: 0" in result.reason
    text = config_of(tmp_path)
    assert "max_batch_size: 0" in text
    assert text.count("dims: [ 5, -1, 3 ]") == 2
    assert 'key: "batch_dim.x"' in text
    assert export(tmp_path, Centered()).version == 2  # fits this file


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_dim": 1}, TypeError, "batch_dim: an int"),
        ({"batch_dim": {"x": "1"}}, ValueError, r"batch_dim\['x'\]: '1'"),
        ({"batch_dim": {"x": -1}}, ValueError, r"batch_dim\['x'\]: -1"),
        ({"batch_dim": {"x": 3}}, ValueError, r"3, but input 'x' has the shape \[5, 4, 3\]"),
        ({"batch_dim": {**DIMS, "z": 1}}, ValueError, "unknown tensor 'z'"),
        (
            {"batch_dim": {"x": 1}},
            braid.ExportError,
            r"output 'y' has the shape \[5, 4, 2\] for 4 rows \(expected the batch as dim 0",
        ),
        ({"batch_dim": {**DIMS, "mean": 1}}, braid.ExportError, r"output 'mean' .* as dim 1"),
        ({"dynamic": {"x": {1: "time"}}}, ValueError, "dim 1 is the batch"),
        ({"dynamic": {"x": {3: "time"}}}, ValueError, "expected a dim from 0 to 2, without 1"),
        ({"format": "aot"}, ValueError, "format 'aot'"),
        ({"stages": [["gru", "last"]]}, ValueError, "stages: cannot be combined"),
    ],
)
def test_invalid_batch_dims_are_rejected(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        export(tmp_path, **options)
    assert not (tmp_path / "m").exists()


def test_inputs_with_different_rows_are_rejected(tmp_path):
    given = {"x": torch.randn(5, 4, 3), "scale": torch.randn(5)}
    message = "'x' has 4, 'scale' has 5 rows .*dim 1 of 'x', 0 of 'scale'"
    with pytest.raises(ValueError, match=message):
        braid.export(Scaled(), given, tmp_path / "m", batch_dim=DIMS)


def test_modules_whose_forward_cannot_be_replaced_are_rejected(tmp_path):
    module = Recurrent()
    module.register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(braid.ExportError, match="forward hook"):
        export(tmp_path, module)
    with pytest.raises(braid.ExportError, match="is TorchScript"):
        export(tmp_path, torch.jit.script(Centered()), format="torchscript")


def test_a_configuration_with_another_batch_dim_is_rejected(tmp_path):
    export(tmp_path, x=(5, 5, 3))
    with pytest.raises(braid.ExportError, match="'x': the batch is dim 1, but the model has it as"):
        braid.export(
            Recurrent(), {"x": torch.randn(5, 5, 3)}, tmp_path / "m", precisions=[], batch_dim={}
        )
