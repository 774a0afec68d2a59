"""Command line of `braid check`."""

import json
import zipfile

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.cli import main  # noqa: E402
from braid.exporter.formats.archive import Archive  # noqa: E402
from edited_package import edit, edit_json, remove_self_test, set_argument  # noqa: E402
from torch import nn  # noqa: E402

HERE = torch.__version__.partition("+")[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "net"
    net = nn.Sequential(nn.Linear(3, 8), nn.GELU())
    return braid.export(net, (torch.randn(4, 3),), folder, "pair", precisions=()).path


@pytest.fixture
def model(exported, tmp_path):
    """Creates a model folder with one version, a pair."""
    folder = tmp_path / "net" / "1"
    folder.mkdir(parents=True)
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder.parent


def made_with(package, version):
    edit_json(package, "extra/train.json", lambda said: said.update(torch_version=version))


@pytest.mark.parametrize("place", ["", "1", "1/model.pt2"])
def test_passing_self_test_is_reported(model, capsys, place):
    assert main(["check", str(model / place)]) == 0
    assert capsys.readouterr() == (
        f"{model}/1/model.pt2: exported pair, made with PyTorch {HERE}: "
        f"self-test passed with PyTorch {HERE}\n",
        "",
    )


def test_results_are_printed_as_json(model, capsys):
    package = model / "1" / "model.pt2"
    assert main(["check", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "package": str(package), "self_test": "passed",
        "message": f"exported pair, made with PyTorch {HERE}: self-test passed with PyTorch {HERE}",
    }
    package.write_bytes(b"nothing")
    assert main(["check", str(model), "--json"]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out) == {
        "package": str(package), "self_test": "failed",
        "message": f"{package}: cannot be read: File is not a zip file",
    }


@pytest.mark.parametrize("version, than", [("2.12.0", "2.12.0"), (HERE, "expected")])
def test_failing_self_test_is_an_error(model, capsys, version, than):
    package = model / "1" / "model.pt2"
    made_with(package, version)
    other = {"as_tensor": {"name": "tangents_1"}}
    set_argument(package, "bw", "gelu_backward.default", "self", other)
    assert main(["check", str(model)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        f"braid: {package}: exported pair, made with PyTorch {version}: self-test failed: "
        f"PyTorch {HERE} computes other results than {than}: "
        f"graph 'bw', parameter_gradient '0.weight' differs by up to "
    )
    assert said.err.endswith(f", and 1 more: export the model again with PyTorch {HERE}\n")


def test_self_test_is_added_to_a_pair(model, capsys):
    package = model / "1" / "model.pt2"
    remove_self_test(package)
    assert main(["check", str(model)]) == 0
    assert capsys.readouterr().out == (
        f"{package}: exported pair, made with PyTorch {HERE}: self-test added\n"
    )
    assert Archive(package).has_self_test
    assert main(["check", str(model)]) == 0
    assert "self-test passed" in capsys.readouterr().out


def test_self_test_is_added_to_a_pair_of_another_pytorch(model, capsys):
    package = model / "1" / "model.pt2"
    remove_self_test(package)
    made_with(package, "2.12.0")
    assert main(["check", str(package)]) == 0
    assert capsys.readouterr().out == (
        f"{package}: exported pair, made with PyTorch 2.12.0: self-test added "
        f"(expected results of PyTorch {HERE}, not of 2.12.0)\n"
    )


def test_self_test_is_added_to_a_program(tmp_path, capsys):
    package = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.randn(2, 3),)), package)
    for event in ("added", f"passed with PyTorch {HERE}"):
        assert main(["check", str(tmp_path)]) == 0
        assert capsys.readouterr().out == (
            f"{package}: exported program, made with PyTorch {HERE}: self-test {event}\n"
        )


def test_formats_without_self_test_are_reported(tmp_path, capsys):
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
    torch.jit.script(nn.Linear(3, 2)).save(tmp_path / "1" / "model.pt")
    with zipfile.ZipFile(tmp_path / "2" / "model.pt2", "w") as file:
        file.writestr("model/data/aotinductor/model/model.so", b"")
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/1/model.pt: TorchScript module: no self-test "
        f"(every version of PyTorch reads TorchScript)\n"
        f"{tmp_path}/2/model.pt2: AOTInductor package: no self-test "
        f"(it runs only on the PyTorch that compiled it)\n"
    )


def test_remaining_versions_are_checked_after_a_failure(model, capsys):
    (model / "1").rename(model / "10")
    (model / "9").mkdir()
    (model / "9" / "model.pt2").write_bytes(b"nothing")
    (model / "notes").mkdir()
    assert main(["check", str(model)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{model}/10/model.pt2: exported pair")
    assert said.err == f"braid: {model}/9/model.pt2: cannot be read: File is not a zip file\n"


@pytest.mark.parametrize("record, change, reason", [
    ("extra/self_test.json", lambda text: text[:-9],
     "extra/self_test.json: damaged: not valid JSON ("),
    ("extra/train.json", lambda text: text.replace("torch_version", "torch"), "no torch_version"),
    ("models/bw.json", lambda text: text.replace("aten.mm", "aten.none"),
     "cannot read the exported pair ("),
])
def test_damaged_package_is_an_error(model, capsys, record, change, reason):
    package = model / "1" / "model.pt2"
    edit(package, record, change)
    assert main(["check", str(model)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"braid: {package}: ") and reason in said.err
    assert "Traceback" not in said.err


def test_unknown_archive_is_an_error(tmp_path, capsys):
    torch.save({"weights": torch.ones(2)}, tmp_path / "model.pt2")
    assert main(["check", str(tmp_path)]) == 1
    assert "unknown format (expected an exported pair, " in capsys.readouterr().err


@pytest.mark.parametrize("arguments, reason", [
    ([], "PATH: missing"),
    (["none"], "none: no package (expected the folder of a model or a version, "),
])
def test_usage_error_exits_with_status_2(capsys, arguments, reason):
    assert main(["check", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_help_describes_usage(capsys):
    assert main(["check", "--help"]) == 0
    said = capsys.readouterr().out
    assert "braid check models/net/1" in said and "Exit codes: 0" in said
