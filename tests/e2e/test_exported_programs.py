"""Models of torch.export.save: outputs equal PyTorch's for any batch size, and unsupported models
report the reason."""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import braid
import pytest
import torch
from e2e.support import inference_packages, programs
from e2e.support.inference import assert_close
from e2e.support.server import Server
from torch import Tensor, nn
from transformers.utils import ModelOutput

CONFIG = inference_packages.MIXED_CONFIG.replace('platform: "torch_aoti"\n', "")
NAMES = {"mixed": ("INPUT__0", "INPUT__1"), "derived": ("x", "words")}


class Counter(nn.Module):
    """Changes a buffer in evaluation mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


class CounterByView(Counter):
    """Changes the buffer through a view."""

    def forward(self, x: Tensor) -> Tensor:
        calls = self.calls.view(1)
        calls += 1
        return x + calls


class CounterWithoutGradients(Counter):
    """Changes the buffer in a region that is a separate graph."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            calls = self.calls.view(1)
            calls += 1
        return x + calls


class CounterByOut(Counter):
    """Changes the buffer through an operator's out argument."""

    def forward(self, x: Tensor) -> Tensor:
        torch.add(self.calls, 1, out=self.calls)
        return x + self.calls


class InPlace(nn.Module):
    """Modifies its input, which belongs to the caller, in place."""

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        flat = x.flatten(1)
        flat *= 2
        return flat


@dataclass
class Result(ModelOutput):
    """Output type like those of transformers' models."""

    logits: Tensor | None = None
    loss: Tensor | None = None
    hidden: OrderedDict[str, Tensor] | None = None


class WithResult(nn.Module):
    """Returns a class instance that contains an OrderedDict."""

    def forward(self, x: Tensor) -> Result:
        return Result(logits=x + 1, hidden=OrderedDict(z=x * 2, a=x * 3))


class InPairs(nn.Module):
    """Returns the number of pairs of rows, rounded up."""

    def forward(self, x: Tensor) -> Tensor:
        return x * -(-x.shape[0] // 2)


class WithConstants(nn.Module):
    """Takes and returns values that are not tensors."""

    def forward(
        self, x: Tensor, times: int, mode: str, *, mask: None, scale: float
    ) -> tuple[Tensor, None, int, Tensor]:
        return x * times * scale, None, x.shape[0], x.flip(1)


class Branches(nn.Module):
    """Branches on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,))


class Autocast(nn.Module):
    """Uses autocast in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return y.float()


def rewrite(package: Path, to: Path, change: Callable[[dict], None]) -> None:
    """Copies the package with a changed models/model.json."""
    to.parent.mkdir(parents=True)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(content)
                change(program)
                content = json.dumps(program).encode()
            new.writestr(name, content)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("programs")
    example = [torch.zeros(5, 10), torch.zeros(5, dtype=torch.int64)]
    package = directory / "derived/1/model.pt2"
    sizes = programs.any_batch(example, min=2, max=inference_packages.LARGEST)
    programs.save(package, inference_packages.mixed(), example, sizes)
    rewrite(package, directory / "mixed/1/model.pt2", lambda _: None)
    (directory / "mixed/config.pbtxt").write_text(CONFIG)
    for name, dim in (("wrong_config", "11"), ("any_size", "-1")):
        rewrite(package, directory / f"{name}/1/model.pt2", lambda _: None)
        (directory / f"{name}/config.pbtxt").write_text(CONFIG.replace("[ 10 ]", f"[ {dim} ]"))
    rewrite(
        package,
        directory / "no_graph/1/model.pt2",
        lambda program: program["graph_module"].pop("graph"),
    )

    def nest(program: dict) -> None:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        node = '{"type": "builtins.list", "context": "null", "children_spec": ['
        signature["out_spec"] = f"[1, {node * 200_000}{']}' * 200_000}]"

    def return_text(program: dict) -> None:
        module = program["graph_module"]
        module["signature"]["output_specs"][0]["user_output"]["arg"] = {"as_string": "hello"}
        module["graph"]["outputs"][0] = {"as_string": "hello"}

    def promise_a_number(program: dict) -> None:
        specs = program["graph_module"]["signature"]["output_specs"]
        specs[0]["user_output"]["arg"] = {"as_int": 7}

    for name, change in (
        ("deep_results", nest),
        ("returns_text", return_text),
        ("promises_a_number", promise_a_number),
    ):
        rewrite(package, directory / f"{name}/1/model.pt2", change)

    def on_a_gpu(program: dict) -> None:
        for value in program["graph_module"]["graph"]["tensor_values"].values():
            value["device"] = {"type": "cuda", "index": 0}

    rewrite(package, directory / "other_device/1/model.pt2", on_a_gpu)
    rows = [torch.zeros(5, 3)]
    programs.save(directory / "counter/1/model.pt2", Counter(), rows, programs.any_batch(rows))
    for name, module in (
        ("counter_by_view", CounterByView()),
        ("counter_without_gradients", CounterWithoutGradients()),
        ("counter_by_out", CounterByOut()),
        ("in_place", InPlace()),
        ("with_result", WithResult()),
        ("branches", Branches()),
    ):
        programs.save(directory / name / "1/model.pt2", module, rows, programs.any_batch(rows))
    programs.save(directory / "five_rows/1/model.pt2", nn.ReLU(), rows, ({},))
    rewrite(
        directory / "five_rows/1/model.pt2", directory / "cut_in_fives/1/model.pt2", lambda _: None
    )
    (directory / "cut_in_fives/config.pbtxt").write_text(
        """max_batch_size: 64
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
    )
    programs.save(directory / "in_pairs/1/model.pt2", InPairs(), rows, programs.any_batch(rows))
    autocast = directory / "autocast/1/model.pt2"
    programs.save(autocast, Autocast(), rows, programs.any_batch(rows))
    (directory / "with_constants/1").mkdir(parents=True)
    torch.export.save(
        torch.export.export(
            WithConstants(),
            (rows[0], 3, "a"),
            {"mask": None, "scale": 0.5},
            dynamic_shapes={
                "x": {0: torch.export.Dim.DYNAMIC},
                "times": None,
                "mode": None,
                "mask": None,
                "scale": None,
            },
        ),
        directory / "with_constants/1/model.pt2",
    )
    (directory / "casts/1").mkdir(parents=True)
    decomposed = torch.export.load(autocast).run_decompositions({})
    torch.export.save(decomposed, directory / "casts/1/model.pt2")
    (directory / "truncated/1").mkdir(parents=True)
    whole = package.read_bytes()
    (directory / "truncated/1/model.pt2").write_bytes(whole[: len(whole) // 2])
    (directory / "flipped/1").mkdir(parents=True)
    flipped = whole.replace(b'"inputs"', b'"hnputs"', 1)
    assert flipped != whole
    (directory / "flipped/1/model.pt2").write_bytes(flipped)
    (directory / "as_torchscript/1").mkdir(parents=True)
    (directory / "as_torchscript/1/model.pt").write_bytes(whole)
    return directory


@pytest.fixture(scope="module", params=[1, 3])
def client(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[braid.Client]:
    run = tmp_path_factory.mktemp("run")
    flags = ("--cpu_threads=1",)
    with Server(repository, f"cpu*{request.param}", run, flags, data=False) as server:
        with braid.connect(server.address) as client:
            yield client


@pytest.mark.parametrize("model", ["mixed", "derived"])
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 33, 65, 333])
def test_any_batch_size_equals_pytorch(client: braid.Client, model: str, rows: int) -> None:
    """The program takes 2 to 32 rows. Larger batches are split and a single row is padded."""
    inference_packages.assert_equals_pytorch(client, model, NAMES[model], rows)


def test_metadata_describes_the_exported_program(client: braid.Client) -> None:
    metadata = client.model_metadata("derived")
    assert [(t.name, t.datatype, t.shape) for t in metadata.inputs] == [
        ("x", "FP32", (-1, 10)),
        ("words", "INT64", (-1,)),
    ]
    assert [(t.name, t.shape) for t in metadata.outputs] == [
        ("hidden", (-1, 5)),
        ("softmax", (-1, 5)),
    ]


def test_input_of_wrong_shape_or_type_is_rejected(client: braid.Client) -> None:
    inference_packages.assert_rejects_wrong_inputs(client, "derived", NAMES["derived"])


def test_explicit_casts_are_executed(client: braid.Client, repository: Path) -> None:
    x = torch.rand(6, 3)
    program = torch.export.load(repository / "casts/1/model.pt2")
    (served,) = client.infer("casts", {"x": x.numpy()}).values()
    assert_close(served, program.module()(x).detach())


def test_autocast_is_executed(client: braid.Client, repository: Path) -> None:
    x = torch.rand(6, 3)
    program = torch.export.load(repository / "autocast/1/model.pt2")
    (served,) = client.infer("autocast", {"x": x.numpy()}).values()
    assert_close(served, program.module()(x).detach())


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_size_division_rounds_as_in_python(client: braid.Client, rows: int) -> None:
    x = torch.rand(rows, 3)
    (served,) = client.infer("in_pairs", {"x": x.numpy()}).values()
    # A single row is padded to the two that the program was exported for.
    assert_close(served, InPairs()(x))


@pytest.mark.parametrize("sign", [1, -1])
def test_cond_takes_the_same_branch_as_pytorch(client: braid.Client, sign: int) -> None:
    x = sign * torch.rand(6, 3)
    (served,) = client.infer("branches", {"x": x.numpy()}).values()
    assert_close(served, (2 * x).sin() if sign > 0 else (2 * x).cos())


def test_exported_constants_are_passed(client: braid.Client) -> None:
    metadata = client.model_metadata("with_constants")
    assert [(t.name, t.datatype, t.shape) for t in metadata.inputs] == [("x", "FP32", (-1, 3))]
    x = torch.rand(6, 3)
    outputs = client.infer("with_constants", {"x": x.numpy()})
    assert_close(outputs["output__0"], x * 1.5)
    assert outputs["output__1"] == 6
    assert_close(outputs["output__2"], x.flip(1))


def test_program_that_modifies_its_input_is_executed(client: braid.Client) -> None:
    x = torch.rand(6, 3)
    (served,) = client.infer("in_place", {"x": x.numpy()}).values()
    assert_close(served, (x + 1) * 2)


def test_fixed_row_count_is_a_batch_if_configured(
    client: braid.Client,
) -> None:
    x = torch.randn(13, 3)
    (served,) = client.infer("five_rows", {"input": x[:5].numpy()}).values()
    assert_close(served, x[:5].relu())
    words = r"expected \[5, 3\]; for any number of rows.*max_batch_size"
    with pytest.raises(braid.InvalidArgument, match=words):
        client.infer("five_rows", {"input": x[:3].numpy()})
    for n in (3, 13):
        (served,) = client.infer("cut_in_fives", {"input": x[:n].numpy()}).values()
        assert_close(served, x[:n].relu())


def test_class_instance_output_is_flattened_to_tensors(client: braid.Client) -> None:
    metadata = client.model_metadata("with_result")
    names = ["logits", "hidden.z", "hidden.a"]
    assert [(t.name, t.shape) for t in metadata.outputs] == [(name, (-1, 3)) for name in names]
    x = torch.rand(6, 3)
    outputs = client.infer("with_result", {"x": x.numpy()})
    for factor, name in enumerate(names, start=1):
        assert_close(outputs[name], x + 1 if name == "logits" else x * factor)


def test_creating_a_trainer_is_rejected(client: braid.Client) -> None:
    inference_packages.assert_not_trainable(
        client, "derived", "is an exported program.*braid.export"
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no_graph", 'graph_module: has no "graph"'),
        ("returns_text", "unsupported output"),
        ("promises_a_number", "wrong kind of output"),
        ("other_device", "exported on a GPU"),
        ("counter", "changes its buffers"),
        ("counter_by_view", "changes its buffers"),
        ("counter_without_gradients", "changes its buffers"),
        ("counter_by_out", "changes its buffers"),
        ("truncated", "reading zip archive: failed finding central directory"),
        ("flipped", "its checksum differs"),
        ("wrong_config", "input 'INPUT__0' is configured as FP32[rows, 11]"),
        ("any_size", "input 'INPUT__0' is configured as FP32[rows, -1]"),
        ("as_torchscript", "name it model.pt2"),
    ],
)
def test_unsupported_model_reports_the_reason(client: braid.Client, model: str, words: str) -> None:
    inference_packages.assert_unavailable(client, model, words)


def test_damage_is_reported_without_guessing_the_cause(client: braid.Client) -> None:
    (status,) = (each for each in client.models() if each.name == "truncated")
    assert status.reason.endswith("failed finding central directory")


def test_deeply_nested_results_do_not_crash_the_server(client: braid.Client) -> None:
    assert [status for status in client.models() if status.name == "deep_results"]
