"""Packages of another PyTorch version than the server's are accepted if their self-test passes."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import braid
import numpy as np
import pytest
import torch
from braid.exporter.checks import self_test
from e2e.support import broken_pairs, inference_packages, programs, training
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from torch import Tensor, nn
from torch.export import Dim

OTHER = "2.10.1"
OWN = torch.__version__.partition("+")[0]
TRAIN, SELF_TEST, PROGRAM = "extra/train.json", "extra/self_test.json", "models/model.json"
DATATYPES = {torch.float32: "FP32", torch.int64: "INT64"}
# Name that the exporter gives a single output. The configuration renames it.
OUTPUT = "output__0"
X = torch.linspace(-1, 1, 40).reshape(4, 10).sin()
GRADIENT = torch.linspace(1, 2, 20).reshape(4, 5).cos()

Json = dict[str, Any]
# Changes of JSON by record name; None for records that are missing or to be removed.
Changes = Mapping[str, Callable[[Json | None], Json | bytes | None]]


class WithNumbers(nn.Module):
    """Returns None and a number next to a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, None, int]:
        return self.linear(x), None, 7


class Multiplied(nn.Module):
    """n: sent by the caller."""

    def forward(self, x: Tensor, n: int) -> Tensor:
        return x * n


def make_program() -> nn.Module:
    torch.manual_seed(0)
    return WithNumbers().eval()


def rewrite(package: Path, to: Path, changes: Changes) -> None:
    """Copies an archive with `changes`, and the other files next to it."""
    to.parent.mkdir(parents=True)
    for beside in package.parent.glob("*.safetensors"):
        (to.parent / beside.name).write_bytes(beside.read_bytes())
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(to, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        entries = {name: old.read(name) for name in old.namelist()}
        for record, change in changes.items():
            name = f"{root}/{record}"
            made = change(json.loads(entries[name]) if name in entries else None)
            if made is None:
                del entries[name]
            else:
                entries[name] = made if isinstance(made, bytes) else json.dumps(made).encode()
        for name, content in entries.items():
            new.writestr(name, content)


def exported_with(version: str) -> Callable[[Json | None], Json]:
    return lambda said: {**(said or {}), "torch_version": version}


def given(tensor: Tensor) -> Json:
    data = base64.b64encode(tensor.detach().contiguous().numpy().tobytes()).decode()
    return {"dtype": DATATYPES[tensor.dtype], "shape": list(tensor.shape), "data": data}


def sample(tensor: Tensor, tolerance: float = 1e-3) -> Json:
    elements = tensor.detach().double().numpy().reshape(-1)
    return {
        "dtype": DATATYPES[tensor.dtype],
        "shape": list(tensor.shape),
        "stride": 3,
        "data": base64.b64encode(elements[::3].tobytes()).decode(),
        "tolerance": tolerance,
    }


def record_of(tensors: Json, graphs: list[Json]) -> Json:
    return {
        "format": "braid-self-test",
        "schema_version": 1,
        "torch_version": OTHER,
        "seed": 20,
        "given": tensors,
        "graphs": graphs,
    }


def pair_record(_: Json | None = None) -> Json:
    """Returns PyTorch's results for the pair that `broken_pairs.export_good` exports."""
    module = broken_pairs.make_good()
    tensors = {f"parameter/{name}": given(value) for name, value in module.named_parameters()}
    tensors |= {f"buffer/{name}": given(value) for name, value in module.named_buffers()}
    tensors |= {"input/x": given(X), f"output_gradient/{OUTPUT}": given(GRADIENT)}
    evaluated = {f"output/{OUTPUT}": sample(module.eval()(X))}
    y = module.train()(X)
    trained = {f"new_buffer/{name}": sample(value) for name, value in module.named_buffers()}
    trained[f"output/{OUTPUT}"] = sample(y)
    y.backward(GRADIENT)
    gradients = {
        f"parameter_gradient/{name}": sample(value.grad)
        for name, value in module.named_parameters()
        if value.grad is not None
    }
    return record_of(
        tensors,
        [
            {"graph": "eval", "role": "eval", "expected": evaluated},
            {"graph": "fw", "role": "forward", "expected": trained},
            {"graph": "bw", "role": "backward", "expected": gradients},
        ],
    )


def program_record(_: Json | None = None) -> Json:
    y, _, number = make_program()(X)
    outputs = {"output/0": sample(y), "output/1": sample(torch.tensor(number))}
    return record_of(
        {"input/0": given(X)}, [{"graph": "model", "role": "eval", "expected": outputs}]
    )


def with_more_than(record: Json, graph: int, output: str, by: float) -> Json:
    """Returns a record whose expected values are larger by `by`."""
    said = record["graphs"][graph]["expected"][output]
    elements = np.frombuffer(base64.b64decode(said["data"]), np.float64) + by
    said["data"] = base64.b64encode(elements.tobytes()).decode()
    return record


def of_schema(major: int, minor: int) -> Callable[[Json | None], Json]:
    return lambda said: {**(said or {}), "schema_version": {"major": major, "minor": minor}}


PAIRS: dict[str, Changes] = {
    "untested": {TRAIN: exported_with(OTHER), SELF_TEST: lambda _: None},
    "passes_the_exporters": {TRAIN: exported_with(OTHER)},
    "passes": {TRAIN: exported_with(f"{OTHER}+cu130"), SELF_TEST: pair_record},
    "newer": {TRAIN: exported_with("99.0.0"), SELF_TEST: pair_record},
    "fails": {
        TRAIN: exported_with(OTHER),
        SELF_TEST: lambda _: with_more_than(
            pair_record(), 2, "parameter_gradient/last.bias", 0.25
        ),
    },
    "fails_but_is_its_own": {
        SELF_TEST: lambda _: with_more_than(pair_record(), 0, f"output/{OUTPUT}", 1.0),
    },
    "no_json": {TRAIN: exported_with(OTHER), SELF_TEST: lambda _: b"{"},
    "unknown_name": {
        TRAIN: exported_with(OTHER),
        SELF_TEST: lambda _: {**pair_record(), "given": {"parameter/none": given(X)}},
    },
    "nothing_given": {
        TRAIN: exported_with(OTHER),
        SELF_TEST: lambda _: {**pair_record(), "given": {}},
    },
    "other_major": {TRAIN: exported_with(OTHER), "models/fw.json": of_schema(9, 1)},
    "newer_minor": {TRAIN: exported_with(OTHER), "models/fw.json": of_schema(8, 999)},
}
PROGRAMS: dict[str, Changes] = {
    "program_untested": {PROGRAM: exported_with(OTHER)},
    "program_passes": {PROGRAM: exported_with(OTHER), SELF_TEST: program_record},
    "program_fails": {
        PROGRAM: exported_with(OTHER),
        SELF_TEST: lambda _: with_more_than(program_record(), 0, "output/1", 1.0),
    },
    "program_no_json": {PROGRAM: exported_with(OTHER), SELF_TEST: lambda _: b"[]"},
    "program_other_major": {PROGRAM: of_schema(9, 1)},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("package_versions")
    repository = directory / "models"
    broken_pairs.export_good(repository / "own")
    for name, changes in PAIRS.items():
        rewrite(repository / "own/1/model.pt2", repository / name / "1/model.pt2", changes)
        (repository / name / "config.pbtxt").write_text(broken_pairs.CONFIG)
    program = repository / "program_own/1/model.pt2"
    programs.save(program, make_program(), [X], programs.any_batch([X]))
    for name, changes in PROGRAMS.items():
        rewrite(program, repository / name / "1/model.pt2", changes)
    number = repository / "number_own/1/model.pt2"
    programs.save(number, Multiplied(), [X, 3], {"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC})
    self_test.add(number)
    rewrite(number, repository / "number/1/model.pt2", {PROGRAM: exported_with(OTHER)})
    flags = ("--cpu_threads=1",)
    with Server(repository, "cpu*2", directory / "run", flags, data=False) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[braid.Client]:
    with braid.connect(server.address) as client:
        yield client


def lines_of(server: Server, model: str) -> list[str]:
    """Returns log lines about the model's package."""
    return [line for line in server.log.splitlines() if f"/{model}/1/model.pt2: exported" in line]


@pytest.mark.parametrize(
    "model", ["own", "untested", "passes", "passes_the_exporters", "newer", "newer_minor"]
)
def test_pair_that_passes_the_self_test_is_served_and_trained(
    client: braid.Client, model: str
) -> None:
    outputs = client.infer(model, {"x": X.numpy()})
    assert_close(outputs["y"], expected(broken_pairs.make_good(), X.numpy()))
    with training.new_trainer(
        client, model, loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
    ) as trainer:
        target = np.arange(4) % 5
        losses = [trainer.step({"x": X.numpy()}, {"target": target}).loss for _ in range(3)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", ["program_own", "program_untested", "program_passes"])
def test_program_that_passes_the_self_test_is_served(client: braid.Client, model: str) -> None:
    outputs = client.infer(model, {"x": X.numpy()})
    y, _, _ = make_program()(X)
    assert_close(next(iter(outputs.values())), y.detach())


def test_self_test_passes_numbers_to_a_program(client: braid.Client, server: Server) -> None:
    assert "its self-test was computed" in "".join(lines_of(server, "number"))
    outputs = client.infer("number", {"x": X.numpy(), "n": np.array([5])})
    assert_close(next(iter(outputs.values())), X * 5)


@pytest.mark.parametrize("model", ["untested", "program_untested"])
def test_package_without_self_test_logs_a_warning(server: Server, model: str) -> None:
    (line,) = lines_of(server, model)
    assert "warn" in line
    for word in (OTHER, OWN, "no self-test", "braid check"):
        assert word in line


def test_self_test_of_another_pytorch_logs_a_warning(server: Server) -> None:
    (line,) = lines_of(server, "passes_the_exporters")
    assert "warn" in line and f"with PyTorch {OTHER}, but its self-test was computed" in line


@pytest.mark.parametrize("model", ["passes", "program_passes"])
def test_passed_self_test_is_logged(server: Server, model: str) -> None:
    (line,) = lines_of(server, model)
    assert "info" in line
    for word in (OTHER, OWN, "passes its self-test"):
        assert word in line


@pytest.mark.parametrize("model", ["own", "program_own", "fails_but_is_its_own"])
def test_package_of_the_servers_version_skips_the_self_test(
    client: braid.Client, server: Server, model: str
) -> None:
    client.infer(model, {"x": X.numpy()})
    assert not lines_of(server, model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "fails",
            f"model.pt2: self-test failed: PyTorch {OWN} computes other results than {OTHER}: "
            "graph 'bw', parameter_gradient 'last.bias' differs by up to 0.25",
        ),
        ("fails", f"(tolerance 0.001) (export the model again with PyTorch {OWN})"),
        ("program_fails", "graph 'model', output '1' differs by up to 1 (tolerance 0.001)"),
        ("no_json", "model.pt2: extra/self_test.json: not a JSON object"),
        ("unknown_name", "extra/self_test.json: given.parameter/none: no graph has this input"),
        ("nothing_given", f"exported with PyTorch {OTHER}: graph 'eval': the self-test has no"),
        ("program_no_json", "model.pt2: extra/self_test.json: not a JSON object"),
        ("other_major", "graph 'fw': schema_version.major: unsupported version 9"),
        ("program_other_major", "schema_version.major: unsupported version 9"),
    ],
)
def test_rejected_package_reports_the_reason(client: braid.Client, model: str, words: str) -> None:
    inference_packages.assert_unavailable(client, model, words)
