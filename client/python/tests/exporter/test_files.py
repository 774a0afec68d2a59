"""Files that an export writes into a repository."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
import grpc  # noqa: E402
import export_models  # noqa: E402
from braid import _protocol  # noqa: E402
from braid.exporter.checks import comparison, row_independence  # noqa: E402
from braid.exporter.formats import package, safetensors  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

CONFIG = """\
max_batch_size: 256
input [
  { name: "input" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: "output__0" data_type: TYPE_FP32 dims: [ 2 ] }
]
"""


# The second export finds the configuration of the first.
EXPORTS_TWICE = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../.."]
import braid, torch
from test_files import Named
for _ in range(2):
    braid.export(Named(), (torch.randn(3, 4),), sys.argv[2], "pair", precisions=())
"""


def export(path, **options):
    options.setdefault("precisions", ())
    return braid.export(nn.Linear(4, 2), (torch.randn(3, 4),), path, "pair", **options)


def test_export_writes_version_and_config(tmp_path):
    path = tmp_path / "models/net"
    result = export(path)
    assert (result.path, result.version, result.format) == (path / "1", 1, "pair")
    files = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))
    assert files == ["models", "models/net", "models/net/1", "models/net/1/model.pt2",
                     "models/net/1/model.safetensors", "models/net/config.pbtxt"]
    assert (path / "config.pbtxt").read_text() == CONFIG


class Named(nn.Module):
    """Returns a dict with a non-ASCII key and one that needs quoting."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, größe):
        return {"温度 °C": self.layer(größe), 'a "b"\\c': größe}


def test_config_quotes_names_as_utf8(tmp_path):
    """Uses UTF-8 in any locale."""
    path = tmp_path / "net"
    tests = str(Path(__file__).parent)
    command = [sys.executable, "-X", "utf8=0", "-c", EXPORTS_TWICE, tests, path]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, check=True, env=environment)
    config = _protocol.message("inference.ModelConfig")()
    text_format.Parse((path / "config.pbtxt").read_bytes().decode("utf-8"), config)
    assert [each.name for each in config.input] == ["größe"]
    assert [each.name for each in config.output] == ["温度 °C", 'a "b"\\c']


def test_torchscript_rejects_non_ascii_names(tmp_path):
    with pytest.raises(braid.ExportError, match="input 'größe': not an ASCII name"):
        braid.export(Named(), (torch.randn(3, 4),), tmp_path / "net", "torchscript")


def test_export_uses_the_next_version_number(tmp_path):
    export(tmp_path / "net")
    (tmp_path / "net/7").mkdir()
    (tmp_path / "net/notes").mkdir()
    assert export(tmp_path / "net").path == tmp_path / "net/8"
    assert (tmp_path / "net/8/model.pt2").is_file()


@pytest.mark.parametrize("by_address", [False, True])
def test_server_assigns_the_version_number(tmp_path, server, client, by_address):
    model = tmp_path / "fashion"
    (model / "5").mkdir(parents=True)
    (model / "5" / "model.pt").touch()  # Somebody took number 5 without asking.
    result = export(model, server=server.address if by_address else client)
    assert (result.version, result.path) == (6, model / "6")
    assert [request.model for request in server.received("ReserveVersion")] == ["fashion"] * 2


def test_no_number_no_files(tmp_path, server, client):
    server.fail("ReserveVersion", grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(braid.PermissionDenied):
        export(tmp_path / "net", server=client)
    assert list(tmp_path.iterdir()) == []


def test_relative_path_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert export("net").path == Path("net/1")
    assert (tmp_path / "net/1/model.pt2").is_file()


def test_package_contains_no_weights_and_no_paths(tmp_path):
    export(tmp_path / "net")
    with zipfile.ZipFile(tmp_path / "net/1/model.pt2") as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert "/weights/" not in name or content == b'{"config": {}}', name
            assert str(Path(__file__).parents[3]).encode() not in content, name
        said = json.loads(archive.read("model/extra/train.json"))
    assert said["format"] == "braid-pair" and said["schema_version"] == 1
    assert said["torch_version"] == torch.__version__.partition("+")[0]
    assert said["device"] == "cpu"


def test_constants_stay_in_the_package(tmp_path):
    class Scaled(nn.Linear):
        def forward(self, input):
            return super().forward(input) * torch.tensor([2.0, 3.0])

    module = Scaled(4, 2)
    braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair", precisions=())
    reader = comparison.PackageReader(tmp_path / "net/1/model.pt2")
    assert [c.tolist() for c in reader.programs["eval"].constants.values()] == [[2.0, 3.0]]


@pytest.mark.parametrize("change, reason", [
    (('"input"', '"x"'), "input: names x, but the model has input"),
    (('"output__0"', '"y"'), "output: names y, but the model has output__0"),
    (("TYPE_FP32", "TYPE_FP16"), "input 'input': data_type TYPE_FP16, but the model has TYPE_FP32"),
    (("dims: [ 2 ]", "dims: [ 3 ]"), r"output 'output__0': dims \[3\], but the model has \[2\]"),
    (("dims: [ 4 ]", "dims: [ -1 ]"), r"input 'input': dims \[-1\], but the model has \[4\] \(-1: "
     r"any size; braid.export's `dynamic` makes a dim take any size\): change config.pbtxt and its "
     r"clients, change the model, or export to the folder"),
    (("max", 'default_model_filename: "model.pt"\nmax'), r"'model.pt' \(expected 'model.pt2' or"),
    (("256", "0"), "with max_batch_size 0"),
    (("max", 'platform: "torch_aoti"\nmax'), "platform: 'torch_aoti'"),
    (("max_batch_size", "max_batch"), "config.pbtxt: 1:1"),
])
def test_config_that_contradicts_the_model_is_rejected(tmp_path, change, reason):
    (tmp_path / "net").mkdir()
    text = CONFIG.replace(*change)
    (tmp_path / "net/config.pbtxt").write_text(text)
    with pytest.raises(braid.ExportError, match=reason):
        export(tmp_path / "net")
    assert [each.name for each in (tmp_path / "net").iterdir()] == ["config.pbtxt"]
    assert (tmp_path / "net/config.pbtxt").read_text() == text


@pytest.mark.parametrize("change, reason", [
    (('"input"', '"x"'), "input: names x"),
    (("dims: [ 4 ]", "dims: [ 5 ]"), r"dims \[5\], but the model has \[4\]: change"),
    (('"output__0"', '"y"'), "output: names y"),
    (("dims: [ 2 ]", "dims: [ 3 ]"), r"dims \[3\], but the model has \[2\]: change"),
])
def test_interface_is_compared_before_the_work(tmp_path, monkeypatch, change, reason):
    monkeypatch.setattr(row_independence, "check", lambda *_: pytest.fail("too late"))
    (tmp_path / "net").mkdir()
    (tmp_path / "net/config.pbtxt").write_text(CONFIG.replace(*change))
    with pytest.raises(braid.ExportError, match=reason):
        export(tmp_path / "net")


def test_matching_config_is_kept(tmp_path):
    (tmp_path / "net").mkdir()
    text = CONFIG.replace("256", "32").replace("dims: [ 2 ]", "dims: [ -1 ]")
    (tmp_path / "net/config.pbtxt").write_text(text + "dynamic_batching { }\n")
    assert export(tmp_path / "net").version == 1
    assert (tmp_path / "net/config.pbtxt").read_text() == text + "dynamic_batching { }\n"


def test_swapped_arguments_are_rejected(tmp_path):
    with pytest.raises(TypeError, match="example_inputs: a PosixPath, path: a tuple .expected"):
        braid.export(nn.Linear(4, 2), tmp_path / "net", (torch.randn(3, 4),))


def test_path_of_a_file_is_rejected(tmp_path):
    (tmp_path / "net").write_text("")
    with pytest.raises(braid.ExportError, match="is a file \\(expected the model's folder"):
        export(tmp_path / "net")


def test_failed_export_leaves_no_files(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package.os, "rename", full)
    with pytest.raises(braid.ExportError, match="cannot be written to: No space left on device"):
        export(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_wrong_package_is_detected_and_removed(tmp_path, monkeypatch):
    """The comparison reads the written file, not the trace."""
    write = package.package_pt2

    def with_another_activation(path, exported_programs, extra_files):
        graph = exported_programs["fw"].graph_module.graph
        (node,) = (n for n in graph.nodes if n.target == torch.ops.aten.relu.default)
        node.target = torch.ops.aten.sigmoid.default
        return write(path, exported_programs=exported_programs, extra_files=extra_files)

    monkeypatch.setattr(package, "package_pt2", with_another_activation)
    module, inputs = export_models.make("mlp")
    with pytest.raises(braid.ExportError, match=r"the package does not match the model: output "
                       r"'output__0' in training, batch of 2, precision model: differs by up to"):
        braid.export(module, inputs, tmp_path / "net", "pair", precisions=())
    assert list(tmp_path.iterdir()) == []


def test_wrong_gradient_is_detected(tmp_path, monkeypatch):
    write = package.package_pt2

    def with_another_gradient(path, exported_programs, extra_files):
        graph = exported_programs["bw"].graph_module.graph
        (node,) = (n for n in graph.nodes if n.target == torch.ops.aten.sum.dim_IntList)
        node.target = torch.ops.aten.amax.default
        return write(path, exported_programs=exported_programs, extra_files=extra_files)

    monkeypatch.setattr(package, "package_pt2", with_another_gradient)
    with pytest.raises(braid.ExportError, match="gradient of the parameter 'bias', batch of 2"):
        export(tmp_path / "net")


def test_safetensors_round_trip(tmp_path):
    torch.manual_seed(1)
    tensors = {
        "flag": torch.tensor([True, False, True]),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "transposed": torch.randn(3, 4).t(),
        "half": torch.randn(3).half(),
        "bfloat16": torch.randn(5).bfloat16(),
        "double": torch.randn(2, 2).double(),
        "weight": nn.Parameter(torch.randn(3)),
    }
    safetensors.write(tmp_path / "t.safetensors", tensors)
    read = load_file(tmp_path / "t.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor), name
    content = (tmp_path / "t.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, tensor in tensors.items():
        begin = 8 + length + header[name]["data_offsets"][0]
        assert begin % tensor.element_size() == 0, name


def test_importing_braid_does_not_import_torch():
    program = "import sys, braid; braid.export; sys.exit('torch' in sys.modules)"
    path = str(Path(braid.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", program], cwd=path, timeout=60).returncode == 0
