"""Models in AOTInductor packages: outputs equal PyTorch's for any batch size, and unsupported
models report the reason."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import braid
import pytest
import torch
from e2e.support import inference_packages
from e2e.support.server import Server

# Names from config.pbtxt, and the names derived without one.
NAMES = {"mixed": ("INPUT__0", "INPUT__1"), "derived": ("input__0", "input__1")}

RELEASE = torch.__version__.partition("+")[0]
# Instructions that this machine's processor lacks, on any machine.
LACKED = next(
    name.upper() for name, has in sorted(torch.cpu.get_capabilities().items()) if has is False
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("aoti")
    inference_packages.compile_mixed(directory / "mixed/1/model.pt2")
    (directory / "mixed/config.pbtxt").write_text(inference_packages.MIXED_CONFIG)
    shutil.copytree(directory / "mixed/1", directory / "derived/1")
    inference_packages.compile_mixed(directory / "fixed/1/model.pt2", smallest=4, largest=4)
    (directory / "fixed/config.pbtxt").write_text(inference_packages.MIXED_CONFIG)
    package = directory / "mixed/1/model.pt2"
    rewrite(package, directory / "other_machine/1/model.pt2", (b"x86_64", b"riscv64"))
    rewrite(package, directory / "other_processor/1/model.pt2", (b'ISA": "', b'ISA": "%s ' % LACKED.encode()))
    for name, version in (("other_torch", b"2.10.1+cpu"), ("own_torch", torch.__version__.encode())):
        entry = b'"BRAID_TORCH_VERSION": "%s", "AOTI_DEVICE_KEY' % version
        rewrite(package, directory / name / "1/model.pt2", (b'"AOTI_DEVICE_KEY', entry))
    with_unknown_function(package, directory / "other_symbols/1/model.pt2")
    rewrite(package, directory / "outside/1/model.pt2", None, ("inductor/model/", "inductor/model/../../"))
    whole = package.read_bytes()
    (directory / "flipped/1").mkdir(parents=True)
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    (directory / "flipped/1/model.pt2").write_bytes(flipped)
    (directory / "truncated/1").mkdir(parents=True)
    (directory / "truncated/1/model.pt2").write_bytes(package.read_bytes()[:100_000])
    (directory / "no_package/1").mkdir(parents=True)
    (directory / "no_package/1/model.pt2").write_bytes(b"no archive")
    shutil.copytree(directory / "mixed/1", directory / "wrong_config/1")
    (directory / "wrong_config/config.pbtxt").write_text(
        inference_packages.MIXED_CONFIG.replace("dims: [ 10 ]", "dims: [ 11 ]")
    )
    return directory


def rewrite(
    package: Path, to: Path, in_metadata: tuple | None, in_names: tuple = ("", "")
) -> None:
    """Copies the package with replacements in its metadata or in the names of its files."""
    to.parent.mkdir(parents=True)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if in_metadata and name.endswith("_metadata.json"):
                content = content.replace(*in_metadata)
            new.writestr(name.replace(*in_names, 1), content)


def with_unknown_function(package: Path, to: Path) -> None:
    """Copies the package with code that calls a function that no PyTorch version has."""
    library = package.with_suffix(".so")
    source = "void aoti_torch_of_the_future(void); void f(void) { aoti_torch_of_the_future(); }"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library],
        input=source,
        text=True,
        check=True,
    )
    to.parent.mkdir(parents=True)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            new.writestr(name, library.read_bytes() if name.endswith(".so") else old.read(name))
    library.unlink()


@pytest.fixture(scope="module", params=[1, 2, 3])
def server(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("run")
    with Server(repository, f"cpu*{request.param}", directory, ("--cpu_threads=1",), data=False) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[braid.Client]:
    with braid.connect(server.address) as client:
        yield client


@pytest.mark.parametrize("model", ["mixed", "derived"])
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 33, 65, 333])
def test_any_batch_size_equals_pytorch(client: braid.Client, model: str, rows: int) -> None:
    """The package takes 2 to 32 rows. Larger batches are split and a single row is padded."""
    inference_packages.assert_equals_pytorch(client, model, NAMES[model], rows)


def test_package_of_the_servers_pytorch_version_is_served(client: braid.Client) -> None:
    inference_packages.assert_equals_pytorch(client, "own_torch", NAMES["derived"], 3)


@pytest.mark.parametrize("rows", [1, 4, 5, 19])
def test_package_of_fixed_batch_size_serves_any_batch_size(client: braid.Client, rows: int) -> None:
    inference_packages.assert_equals_pytorch(client, "fixed", NAMES["mixed"], rows)


def test_input_of_wrong_shape_or_type_is_rejected(client: braid.Client) -> None:
    inference_packages.assert_rejects_wrong_inputs(client, "mixed", NAMES["mixed"])


def test_creating_a_trainer_is_rejected(client: braid.Client) -> None:
    inference_packages.assert_not_trainable(client, "mixed", "AOTInductor package")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("other_machine", "compiled for riscv64"),
        ("other_processor", LACKED),
        (
            "other_torch",
            f"was compiled with PyTorch 2.10.1, but this server runs PyTorch {RELEASE} (compile it "
            f"again with PyTorch {RELEASE})",
        ),
        ("other_symbols", "undefined symbol: aoti_torch_of_the_future"),
        ("other_symbols", f"compile it again with this server's PyTorch {RELEASE}"),
        ("outside", "has a record with the invalid name"),
        ("truncated", "archive is damaged"),
        ("flipped", "its checksum differs"),
        ("no_package", "not a zip archive"),
        ("wrong_config", "input 'INPUT__0' is configured as FP32[rows, 11]"),
    ],
)
def test_unsupported_model_reports_the_reason(client: braid.Client, model: str, words: str) -> None:
    inference_packages.assert_unavailable(client, model, words)


def test_temporary_folder_contains_only_loaded_packages(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with Server(repository, "cpu*2", tmp_path / "run", data=False):
        assert len(list(folder.iterdir())) == 4  # mixed, derived, fixed, own_torch
    assert not list(folder.iterdir())
