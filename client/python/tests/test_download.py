"""Downloads of models are atomic."""

import io

import grpc
import numpy as np
import pytest
from safetensors.numpy import load, save

import braid


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="mse", optimizer="SGD")


def test_download_replaces_a_file(server, trainer, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"before")
    assert trainer.download(path) == 100
    assert path.read_bytes() == server.file
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    (request,) = server.received("DownloadModel")
    assert (request.trainer, request.format) == ("fashion", request.FORMAT_TORCHSCRIPT)


def test_download_writes_to_a_file_object(server, trainer):
    file = io.BytesIO(b"....")
    file.seek(4)
    assert trainer.download(file, format="safetensors") == 100
    assert file.getvalue() == b"...." + server.file
    (request,) = server.received("DownloadModel")
    assert request.format == request.FORMAT_SAFETENSORS


def test_broken_stream_restarts(server, trainer, tmp_path):
    server.fail("DownloadModel", grpc.StatusCode.UNAVAILABLE)
    trainer.download(str(tmp_path / "model.pt"))
    assert (tmp_path / "model.pt").read_bytes() == server.file
    assert len(server.received("DownloadModel")) == 2


def test_package_format_is_requested(server, trainer):
    server.pair = True
    trainer.download(io.BytesIO(), format="package")
    (request,) = server.received("DownloadModel")
    assert request.format == request.FORMAT_PACKAGE


@pytest.mark.parametrize("edit", [
    lambda pieces: pieces[:-1], lambda pieces: pieces[1:], lambda pieces: [],
    lambda pieces: pieces[:2] + pieces[1:], lambda pieces: pieces[:2] + pieces[3:],
])
def test_incomplete_download_keeps_the_old_file(server, trainer, tmp_path, edit):
    path = tmp_path / "model.pt"
    path.write_bytes(b"before")
    server.edit_pieces = edit
    with pytest.raises(braid.DataLoss):
        trainer.download(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    file = io.BytesIO()
    with pytest.raises(braid.DataLoss):
        trainer.download(file)
    assert file.getvalue() == b""


@pytest.mark.parametrize("pair, name, format", [
    (False, "m.pt", 1), (False, "m.safetensors", 2), (True, "m.safetensors", 2), (True, "m.pt2", 3),
])
def test_suffix_chooses_the_format(server, trainer, tmp_path, pair, name, format):
    server.pair = pair
    assert trainer.download(tmp_path / name) == 100
    assert [request.format for request in server.received("DownloadModel")] == [format]


@pytest.mark.parametrize("pair, name, message", [
    (True, "m.pt", "file: '{}': model 'fashion' is an exported pair (expected the suffix "
     ".safetensors for the weights, .pt2 for the graphs, or a folder for both)"),
    (False, "m.pt2", "file: '{}': model 'fashion' is a TorchScript module (expected the suffix "
     ".pt for the module or .safetensors for the weights)"),
])
def test_suffix_of_another_kind_of_model_is_rejected(
    server, trainer, tmp_path, pair, name, message
):
    server.pair = pair
    with pytest.raises(braid.InvalidArgument) as caught:
        trainer.download(tmp_path / name)
    assert str(caught.value) == message.format(tmp_path / name)
    assert caught.value.field == "file"
    assert not list(tmp_path.iterdir())


def test_unknown_suffix_is_rejected(server, trainer, tmp_path):
    expected = r"file: '.*m\.onnx': unknown suffix \(expected \.pt, \.safetensors, \.pt2 or a folder"
    with pytest.raises(ValueError, match=expected):
        trainer.download(tmp_path / "m.onnx")
    assert not server.received("DownloadModel")
    trainer.download(tmp_path / "m.onnx", "safetensors")


@pytest.mark.parametrize("pair, names", [
    (False, ["model.pt"]), (True, ["model.pt2", "model.safetensors"]),
])
def test_folder_receives_a_version(server, trainer, tmp_path, pair, names):
    server.pair = pair
    version = tmp_path / "models" / "second" / "1"
    assert trainer.download(version) == 100 * len(names)
    assert sorted(path.name for path in version.iterdir()) == names
    assert all(path.read_bytes() == server.file for path in version.iterdir())
    assert list(version.parent.iterdir()) == [version]
    with pytest.raises(FileExistsError, match=r"not empty \(expected a new or an empty folder\)"):
        trainer.download(version)
    (tmp_path / "v1.0").mkdir()
    trainer.download(tmp_path / "v1.0")
    assert sorted(path.name for path in (tmp_path / "v1.0").iterdir()) == names


def test_incomplete_folder_is_removed(server, trainer, tmp_path):
    server.edit_pieces = lambda pieces: pieces[:-1]
    with pytest.raises(braid.DataLoss):
        trainer.download(tmp_path / "1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pair, formats", [(False, [1]), (True, [1, 2])])
def test_file_object_receives_what_the_model_has(server, trainer, pair, formats):
    server.pair = pair
    file = io.BytesIO()
    assert trainer.download(file) == 100
    assert file.getvalue() == server.file
    assert [request.format for request in server.received("DownloadModel")] == formats


def test_unknown_format_is_rejected(trainer):
    expected = r"format: 'onnx' \(expected one of torchscript, safetensors, package\)"
    with pytest.raises(ValueError, match=expected):
        trainer.download("model.onnx", format="onnx")


def trained(*names):
    """Returns a file with one value per name."""
    return save({name: np.full(3, i, np.float32) for i, name in enumerate(names)})


def numbered(file):
    """Returns the value of each tensor by name."""
    assert int.from_bytes(file[:8], "little") % 8 == 0
    return {name: int(array[0]) for name, array in load(file).items()}


def test_trainable_only_keeps_names_and_bytes(server, trainer, tmp_path):
    server.trainable_file = trained("head.weight", "head.bias", "lora_A.default.weight")
    file = io.BytesIO(b"....")
    file.seek(4)
    assert trainer.download(file, trainable_only=True) == len(file.getvalue()) - 4
    path = tmp_path / "head.safetensors"
    assert trainer.download(path, trainable_only=True) == path.stat().st_size
    assert path.read_bytes() == file.getvalue()[4:]
    assert numbered(path.read_bytes()) == numbered(server.trainable_file)
    assert [request.format for request in server.received("DownloadModel")] == [4, 4]
    assert list(tmp_path.iterdir()) == [path]


ATTENTION = "base_model.model.layer.0.query"


@pytest.mark.parametrize("wrapper", ["", "net."])
def test_trainable_only_names_a_lora_model_as_peft_does(server, trainer, wrapper):
    names = {
        f"{ATTENTION}.lora_A.my_adapter.weight": f"{ATTENTION}.lora_A.weight",
        f"{ATTENTION}.lora_B.my_adapter.bias": f"{ATTENTION}.lora_B.bias",
        f"{ATTENTION}.lora_embedding_A.my_adapter": f"{ATTENTION}.lora_embedding_A",
        f"{ATTENTION}.lora_magnitude_vector.my_adapter.weight": f"{ATTENTION}.lora_magnitude_vector",
        f"{ATTENTION}.base_layer.bias": f"{ATTENTION}.base_layer.bias",
        "base_model.model.head.modules_to_save.my_adapter.out.weight":
            "base_model.model.head.out.weight",
    }
    server.trainable_file = trained(*(wrapper + name for name in names))
    file = io.BytesIO()
    trainer.download(file, "safetensors", trainable_only=True)
    before = numbered(server.trainable_file)
    assert numbered(file.getvalue()) == {
        names[name.removeprefix(wrapper)]: value for name, value in before.items()
    }


def test_trainable_only_keeps_the_names_of_two_adapters_apart(server, trainer):
    server.trainable_file = trained(
        f"{ATTENTION}.lora_A.one.weight", f"{ATTENTION}.lora_A.other.weight"
    )
    file = io.BytesIO()
    trainer.download(file, trainable_only=True)
    assert numbered(file.getvalue()) == numbered(server.trainable_file)


@pytest.mark.parametrize("name, format, problem", [
    ("m.pt", None, "the format is 'torchscript'"), ("m.pt2", None, "the format is 'package'"),
    ("m.safetensors", "package", "the format is 'package'"), ("m", None, "'m' is a folder"),
])
def test_trainable_only_requires_safetensors(server, trainer, name, format, problem):
    with pytest.raises(ValueError) as caught:
        trainer.download(name, format, trainable_only=True)
    assert str(caught.value) == f"trainable_only: {problem} (expected safetensors)"
    assert not server.received("DownloadModel")


def test_incomplete_trainable_download_keeps_the_old_file(server, trainer, tmp_path):
    server.trainable_file = trained(*(f"layer.{i}.weight" for i in range(20)))
    server.edit_pieces = lambda pieces: pieces[:-1]
    path = tmp_path / "head.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(braid.DataLoss):
        trainer.download(path, trainable_only=True)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
