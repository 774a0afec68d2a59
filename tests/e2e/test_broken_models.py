"""A model that cannot be loaded reports the reason and does not affect other models."""

from __future__ import annotations

import io
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server

CHAIN_CONFIG = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 10 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""
# Folder → words of the reason.
BROKEN = {
    "garbage": ("model.pt",),
    "unimplemented": ("sequence_batching", "config.pbtxt"),
    "no_example": ("config.pbtxt", "bundled_inputs"),
    "no_version": ("version",),
    "empty_version": ("model.pt",),
    "not_text": ("config.pbtxt", "line 1"),
    "misnamed": ("name", "chain"),
    "wrong_inputs": ("input",),
    "truncated": ("model.pt", "damaged"),
    "flipped": ("model.pt", "damaged at 'data/0'", "its checksum differs"),
    "empty_file": ("model.pt", "is empty"),
    "tiny_file": ("model.pt", "too short for an archive"),
    "a_directory": ("model.pt", "is not a regular file"),
    "random_bytes": ("model.pt", "not a zip archive"),
    "state_dict": ("torch.save", "torch.jit.save"),
    "eager_module": ("torch.save", "torch.jit.save"),
    "old_pickle": ("Python pickle",),
    "numpy_archive": ("not a TorchScript module",),
    "no_code": ("model.pt cannot be loaded as TorchScript",),
    "no_module": ("model.pt cannot be loaded as TorchScript",),
    "path_tricks": ("model.pt",),
    "bomb": ("model.pt", "unpack to more than"),
    "program": ("package of torch.export",),
}


def write_model(repository: Path, name: str, content: bytes) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1/model.pt").write_bytes(content)
    (repository / name / "config.pbtxt").write_text(CHAIN_CONFIG)


def archive(write: Callable[[zipfile.ZipFile], None]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        write(file)
    return buffer.getvalue()


def saved(value: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def changed(module: bytes, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> bytes:
    """Returns a TorchScript archive with other names and contents; None removes a file."""

    def write(file: zipfile.ZipFile) -> None:
        with zipfile.ZipFile(io.BytesIO(module)) as old:
            for name in old.namelist():
                entry = change(name, old.read(name))
                if entry is not None:
                    file.writestr(*entry)

    return archive(write)


def write_invalid_files(repository: Path) -> None:
    chain = models.make("chain")
    module = torch.jit.script(chain).save_to_buffer()
    write_model(repository, "truncated", module[: len(module) * 2 // 3])
    weight = next(chain.parameters()).detach().numpy().tobytes()
    assert weight in module
    write_model(repository, "flipped", module.replace(weight, bytes([weight[0] ^ 1]) + weight[1:]))
    write_model(repository, "empty_file", b"")
    write_model(repository, "tiny_file", b"PK")
    write_model(repository, "random_bytes", np.random.default_rng(0).bytes(10_000))
    write_model(repository, "state_dict", saved(chain.state_dict()))
    write_model(repository, "eager_module", saved(chain))
    legacy = saved(chain.state_dict(), _use_new_zipfile_serialization=False)
    write_model(repository, "old_pickle", legacy)
    arrays = archive(lambda file: file.writestr("archive/version", "3"))
    write_model(repository, "numpy_archive", arrays)
    write_model(
        repository,
        "no_code",
        changed(module, lambda name, data: None if "/code/" in name else (name, data)),
    )
    number = pickle.dumps(7, protocol=2)
    write_model(
        repository,
        "no_module",
        changed(module, lambda name, data: (name, number if "/data.pkl" in name else data)),
    )
    write_model(
        repository,
        "path_tricks",
        changed(module, lambda name, data: (name.replace("/", "/../../", 1), data)),
    )
    zeros = bytes(1 << 30)
    write_model(
        repository,
        "bomb",
        changed(module, lambda name, data: (name, zeros if "/data/0" in name else data)),
    )
    program = torch.export.export(chain, (torch.zeros(2, 10),))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_model(repository, "program", buffer.getvalue())
    (repository / "a_directory/1/model.pt").mkdir(parents=True)


def write_broken(repository: Path) -> None:
    """Writes one folder for each of BROKEN."""
    chain = models.make("chain")
    (repository / "garbage/1").mkdir(parents=True)
    (repository / "garbage/1/model.pt").write_bytes(b"no archive" * 100)
    (repository / "garbage/config.pbtxt").write_text(CHAIN_CONFIG)
    models.export(
        repository / "unimplemented", chain, config=CHAIN_CONFIG + "sequence_batching { }"
    )
    models.export(repository / "no_example", chain)
    (repository / "no_version").mkdir()
    (repository / "empty_version/1").mkdir(parents=True)
    models.export(repository / "not_text", chain, config="max_batch_size = 8")
    models.export(repository / "misnamed", chain, config='name: "chain"' + CHAIN_CONFIG)
    two = CHAIN_CONFIG + 'input [ { name: "z" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    models.export(repository / "wrong_inputs", chain, config=two)
    write_invalid_files(repository)


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("broken")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript.
        write_broken(directory / "models")
    shutil.copytree(repository / "two_inputs", directory / "models/two_inputs")
    (directory / "models/notes.txt").write_text("A file is no model.")
    with Server(directory / "models", "cpu*2", directory / "run") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[braid.Client]:
    with braid.connect(server.address) as client:
        yield client


def test_valid_models_are_served(client: braid.Client) -> None:
    assert client.is_ready()
    a, b = np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    outputs = client.infer("two_inputs", {"a": a, "b": b})
    assert_close(outputs["output__0"], expected(models.make("two_inputs"), a, b))


@pytest.mark.parametrize("name", BROKEN)
def test_index_and_log_report_the_reason(client: braid.Client, server: Server, name: str) -> None:
    (status,) = [status for status in client.models() if status.name == name]
    assert status.state == "UNAVAILABLE"
    for word in BROKEN[name]:
        assert word in status.reason
    assert any(name in line and status.reason in line for line in server.log.splitlines())


def test_index_lists_exactly_the_model_folders(client: braid.Client) -> None:
    assert [status.name for status in client.models()] == sorted([*BROKEN, "two_inputs"])


@pytest.mark.parametrize("name", BROKEN)
def test_requests_fail_with_the_reason(client: braid.Client, name: str) -> None:
    (status,) = [status for status in client.models() if status.name == name]
    with pytest.raises(braid.NotFound) as caught:
        client.infer(name, {"x": np.zeros((1, 10), np.float32)})
    assert name in caught.value.message
    assert status.reason in caught.value.message
    assert not client.is_ready(name)
