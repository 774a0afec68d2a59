"""Choice of the format, TorchScript, and compiled packages."""

import re
import shutil

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
import export_models  # noqa: E402
from braid.exporter.formats import pair  # noqa: E402
from torch import Tensor, nn  # noqa: E402


class Decides(nn.Module):
    """Branches on values, which TorchScript supports and a pair does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return self.layer(x)
        return -self.layer(x)


class Calls(nn.Module):
    """Supported only as a trace: neither a pair nor a script can express forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})

    def forward(self, x: Tensor, *others: Tensor) -> dict[str, Tensor]:
        if x.isnan().any().item():
            raise ValueError("not a number")
        return {name: self.layers[name](x, *others) for name in sorted({*self.layers})}


def test_auto_prefers_the_pair(tmp_path):
    module, inputs = export_models.make("linear")
    result = braid.export(module, inputs, tmp_path / "net")
    assert (result.format, result.reason) == ("pair", "")


class ReturnsNone(nn.Module):
    """Returns None for the loss, like models without labels."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.named = named

    def forward(self, x: Tensor):
        y = self.layer(x)
        return {"loss": None, "logits": y} if self.named else (y, None)


@pytest.mark.parametrize("named, name", [(True, "logits"), (False, "output__0")])
def test_outputs_that_are_none_are_omitted(tmp_path, named, name):
    result = braid.export(ReturnsNone(named), (torch.randn(3, 4),), tmp_path / "net", "pair")
    assert result.format == "pair"
    assert (tmp_path / "net/config.pbtxt").read_text().count(f'name: "{name}"') == 1


ANY_SIZE = """\
max_batch_size: 8
input [ { name: "input" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def export_beside(config, module, path, format="auto"):
    path.mkdir()
    (path / "config.pbtxt").write_text(config)
    return braid.export(module, (torch.randn(3, 4),), path, format)


def test_auto_scripts_a_module_for_a_config_of_any_size(tmp_path):
    """A pair takes one size, so clients that send others would fail."""
    result = export_beside(ANY_SIZE, nn.ReLU(), tmp_path / "net")
    assert result.format == "torchscript"
    assert re.search(
        r"no pair: .*pbtxt: input 'input': dims \[-1\], but the model has \[4\]", result.reason
    )
    torch.jit.load(str(result.path / "model.pt"))(torch.randn(2, 9))


@pytest.mark.parametrize("format", ["auto", "torchscript"])
def test_module_of_one_size_is_rejected_for_a_config_of_any_size(tmp_path, format):
    with pytest.raises(braid.ExportError) as caught:
        export_beside(ANY_SIZE, nn.Linear(4, 4), tmp_path / "net", format)
    assert str(caught.value).count("input 'input': dims [-1], but the model has [4]") == 1
    assert [each.name for each in (tmp_path / "net").iterdir()] == ["config.pbtxt"]


def test_auto_scripts_a_module_that_a_pair_cannot_express(tmp_path):
    module = Decides()
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net")
    assert result.format == "torchscript" and result.path == tmp_path / "net/1"
    assert "no pair: forward() converts a tensor's values to a Python number" in result.reason
    assert "if bool(x.sum() > 0):" in result.reason
    assert 'platform: "pytorch_libtorch"' in (tmp_path / "net/config.pbtxt").read_text()
    loaded = torch.jit.load(str(tmp_path / "net/1/model.pt"))
    assert [name for name, _ in loaded.named_parameters()] == ["layer.weight", "layer.bias"]
    for x in (torch.randn(5, 4), torch.rand(2, 4), -torch.rand(9, 4)):
        assert torch.equal(loaded(x), module(x))


def test_auto_traces_a_module_that_cannot_be_scripted(tmp_path):
    module = Calls()
    result = braid.export(module, {"x": torch.randn(3, 4)}, tmp_path / "net")
    assert result.format == "torchscript"
    assert "traced, because it cannot be scripted" in result.reason
    assert "in training, code that depends on self.training, such as dropout" in result.reason
    config = (tmp_path / "net/config.pbtxt").read_text()
    assert 'name: "a"' in config and 'name: "b"' in config
    loaded = torch.jit.load(str(tmp_path / "net/1/model.pt"))
    x = torch.randn(8, 4)
    assert torch.equal(loaded(x)["b"], module(x)["b"])


def test_auto_reports_why_no_format_works(tmp_path):
    class Hidden(nn.Module):
        def forward(self, x, *rest):
            return x[: int(x.sum())]

    with pytest.raises(braid.ExportError, match="(?s)no pair: .*\nno TorchScript: "):
        braid.export(Hidden(), {"x": torch.ones(3, 4)}, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_auto_falls_back_after_an_internal_error(tmp_path, monkeypatch):
    def fails_internally(*_):
        raise AssertionError("deep inside")

    monkeypatch.setattr(pair, "trace", fails_internally)
    module, inputs = export_models.make("linear")
    result = braid.export(module, inputs, tmp_path / "net")
    assert result.format == "torchscript"
    assert result.reason.startswith("no pair: AssertionError: deep inside\n")
    with pytest.raises(braid.ExportError, match="^AssertionError: deep inside\n"):
        braid.export(module, inputs, tmp_path / "pair", "pair")


@pytest.mark.parametrize("make", [torch.jit.script, lambda each: torch.jit.trace(
    each, torch.randn(2, 4))], ids=["script", "trace"])
def test_torchscript_module_is_exported_as_torchscript(tmp_path, make):
    module = make(nn.Linear(4, 2))
    x = torch.randn(3, 4)
    with pytest.raises(braid.ExportError, match=r"is TorchScript \(a pair needs a Python module"):
        braid.export(module, (x,), tmp_path / "pair", "pair")
    assert list(tmp_path.iterdir()) == []
    result = braid.export(module, (x,), tmp_path / "net")
    assert result.format == "torchscript"
    assert 'name: "input"' in (tmp_path / "net/config.pbtxt").read_text()
    assert torch.equal(torch.jit.load(str(result.path / "model.pt"))(x), module(x))


def test_auto_falls_back_for_a_torchscript_submodule(tmp_path):
    module = nn.Sequential(torch.jit.script(nn.Linear(4, 2)), nn.ReLU())
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net")
    assert result.format == "torchscript"
    assert "no pair: the submodule '0' is TorchScript" in result.reason


def test_lazy_parameters_are_rejected(tmp_path):
    with pytest.raises(braid.ExportError, match="'weight' has no shape yet: run the module on"):
        braid.export(nn.LazyLinear(3), (torch.randn(3, 4),), tmp_path / "net")


def test_script_with_different_results_is_rejected(tmp_path):
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if torch.jit.is_scripting():
                return self.layer(x) + 1
            return self.layer(x)

    with pytest.raises(braid.ExportError, match="output 'output__0' in evaluation differs"):
        braid.export(Asks(), {"x": torch.ones(3, 4)}, tmp_path / "net", "torchscript")


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.t() * 2


@pytest.mark.parametrize("format", ["auto", "torchscript"])
def test_module_whose_outputs_have_no_batch_dim_is_not_batched(tmp_path, format):
    result = braid.export(Turned(), {"x": torch.ones(3, 4)}, tmp_path / "net", format)
    assert result.format == "torchscript"
    assert "output 'output__0' has the shape [4, 7] for 7 rows" in result.reason
    config = (tmp_path / "net/config.pbtxt").read_text()
    assert "max_batch_size: 0\n" in config
    assert 'name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ]' in config
    assert 'name: "output__0" data_type: TYPE_FP32 dims: [ 4, -1 ]' in config


def test_pair_requires_the_batch_as_dim_0(tmp_path):
    with pytest.raises(braid.ExportError, match="expected the batch as dim 0"):
        braid.export(Turned(), {"x": torch.ones(3, 4)}, tmp_path / "net", "pair")
    assert list(tmp_path.iterdir()) == []


def test_auto_does_not_fall_back_for_wrong_stages(tmp_path):
    module, inputs = export_models.make("mlp")
    with pytest.raises(braid.ExportError, match="does not match the whole model"):
        braid.export(module, inputs, tmp_path / "net", stages=[["classifier", "features"]])
    assert list(tmp_path.iterdir()) == []


def test_torchscript_has_the_same_names_as_the_pair(tmp_path):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
            y = self.layer(x) * scale[:, None]
            return {"y": y, "total": y.sum()}

    inputs = {"x": torch.randn(3, 4), "scale": torch.rand(3)}
    module = Named()
    braid.export(module, inputs, tmp_path / "pair", "pair", precisions=())
    braid.export(module, inputs, tmp_path / "script", "torchscript")
    pair = (tmp_path / "pair/config.pbtxt").read_text()
    script = (tmp_path / "script/config.pbtxt").read_text()
    assert script == 'platform: "pytorch_libtorch"\n' + pair


def test_compiled_package_matches_the_module(tmp_path):
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> dict:
            y = self.layer(x) * scale[:, None]
            return {"y": y, "more": [scale + 1, y.sum()]}

    module, inputs = Nested(), {"x": torch.randn(3, 4), "scale": torch.rand(3)}
    result = braid.export(module, inputs, tmp_path / "net", "aot")
    assert (result.format, result.path) == ("aot", tmp_path / "net/1")
    assert "inference only" in result.reason
    assert 'platform: "torch_aoti"' in (tmp_path / "net/config.pbtxt").read_text()
    loaded = torch._inductor.aoti_load_package(str(result.path / "model.pt2"))
    for rows in (1, 5):
        batch = {"x": torch.randn(rows, 4), "scale": torch.rand(rows)}
        expected, got = module(**batch), loaded(**batch)
        assert list(got) == ["y", "more.0", "more.1"]
        torch.testing.assert_close(got["y"], expected["y"].detach())
        torch.testing.assert_close(got["more.1"], expected["more"][1].detach())


def test_random_numbers_in_evaluation_are_rejected_by_aot(tmp_path):
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, training=True)

    with pytest.raises(braid.ExportError, match="draws random numbers in evaluation"):
        braid.export(Noisy(), (torch.randn(3, 64),), tmp_path / "net", "aot")


def test_aot_without_a_compiler_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    module, inputs = export_models.make("linear")
    with pytest.raises(braid.ExportError, match="format 'aot' needs a C.. compiler"):
        braid.export(module, inputs, tmp_path / "net", "aot")
    assert list(tmp_path.iterdir()) == []
