"""Models in AOTInductor packages: PyTorch's outputs for any batch, and clear words for what they
cannot do."""

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

# Names that config.pbtxt gives, and what is derived without one.
NAMES = {"mixed": ("INPUT__0", "INPUT__1"), "derived": ("input__0", "input__1")}

RELEASE = torch.__version__.partition("+")[0]
# Instructions that this machine's processor lacks, whichever machine this is.
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
    of_the_future(package, directory / "other_symbols/1/model.pt2")
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
    """A copy with something replaced in its metadata, or in the names of its files."""
    to.parent.mkdir(parents=True)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if in_metadata and name.endswith("_metadata.json"):
                content = content.replace(*in_metadata)
            new.writestr(name.replace(*in_names, 1), content)


def of_the_future(package: Path, to: Path) -> None:
    """A copy whose code calls a function that no PyTorch has."""
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
def test_any_batch_gives_pytorchs_outputs(client: braid.Client, model: str, rows: int) -> None:
    """The package takes 2 to 32 rows: a larger batch is cut, a single row filled up."""
    inference_packages.assert_gives_pytorchs_outputs(client, model, NAMES[model], rows)


def test_a_package_of_the_servers_own_version_is_served(client: braid.Client) -> None:
    inference_packages.assert_gives_pytorchs_outputs(client, "own_torch", NAMES["derived"], 3)


@pytest.mark.parametrize("rows", [1, 4, 5, 19])
def test_a_package_of_one_batch_size_serves_any(client: braid.Client, rows: int) -> None:
    inference_packages.assert_gives_pytorchs_outputs(client, "fixed", NAMES["mixed"], rows)


def test_an_input_of_another_shape_or_type_is_refused(client: braid.Client) -> None:
    inference_packages.assert_refuses_other_inputs(client, "mixed", NAMES["mixed"])


def test_it_cannot_be_trained(client: braid.Client) -> None:
    inference_packages.assert_cannot_be_trained(client, "mixed", "AOTInductor package")


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
def test_what_cannot_run_here_says_why(client: braid.Client, model: str, words: str) -> None:
    inference_packages.assert_unavailable(client, model, words)


def test_nothing_is_left_in_the_temporary_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with Server(repository, "cpu*2", tmp_path / "run", data=False):
        assert len(list(folder.iterdir())) == 4  # mixed, derived, fixed, own_torch
    assert not list(folder.iterdir())
