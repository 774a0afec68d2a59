"""Downloads of models are atomic."""

import io

import grpc
import pytest

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


def test_unknown_format_is_rejected(trainer):
    expected = r"format: 'onnx' \(expected one of torchscript, safetensors, package\)"
    with pytest.raises(ValueError, match=expected):
        trainer.download("model.onnx", format="onnx")
