"""Requests are merged only if a row's result does not depend on other rows."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import model_control, models, programs
from e2e.support.inference import assert_close, expected, infer, infer_input
from e2e.support.model_control import reasons
from e2e.support.polling import wait_until
from e2e.support.protocol import CALL_SECONDS
from e2e.support.server import Server
from torch import Tensor, nn
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

REQUESTS = 200


def independence_after_test(client: triton.InferenceServerClient, model: str) -> str:
    """Returns the state of the version that serves, once its rows are tested."""

    def state() -> str:
        said = client.get_model_config(model, as_json=True)["config"]
        return said["parameters"]["row_independence"]["string_value"]

    wait_until(lambda: state() != "untested")
    return state()


class PointCloud(nn.Module):
    """Returns each point's features and the maximum of its cloud. Dim 0 is the points."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.linear(x)
        return torch.cat([features, features.amax(0, keepdim=True).expand_as(features)], 1)


class Pairwise(nn.Module):
    """Returns the product of every pair of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x.t()


class Pooled(nn.Module):
    """Returns one row for the whole cloud."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(0)


class LearnsToMix(nn.Module):
    """Adds the mean of all rows once `share` exceeds one half."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        features = self.linear(x)
        mixed = features + self.share * features.mean(0, keepdim=True)
        return torch.where(self.share > 0.5, mixed, features + self.share)


def config(rows: int = 64, parameters: str = "", outputs: str = "8") -> str:
    return f"""
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {"" if rows else "-1, "}6 ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ {"" if rows else "-1, "}{outputs} ] }} ]
{parameters}
"""


def parameter(value: str) -> str:
    return f'parameters {{ key: "row_independence" value {{ string_value: "{value}" }} }}'


def seeded(module: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return module().eval()


WITHOUT_CONFIG = {
    f"{name}_{format}": (module, format)
    for name, module in (("cloud", PointCloud), ("pairwise", Pairwise), ("pooled", Pooled))
    for format in ("exported", "aot", "torchscript")
    if (name, format) != ("pooled", "aot")  # Each takes some seconds to compile.
}


def write(directory: Path, module: nn.Module, format: str) -> None:
    example = torch.zeros(4, 6)  # bundled_inputs accepts only small or constant tensors.
    if format == "torchscript":
        models.export(directory, module, inputs=[example])
    else:
        save = programs.save if format == "exported" else programs.compile_from_one
        save(directory / "1/model.pt2", module, [example], programs.any_batch([example]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("rows")
    repository = directory / "models"
    for name, (module, format) in WITHOUT_CONFIG.items():
        write(repository / name, seeded(module), format)
    for name, text in {
        "declared": config(),
        "assumed": config(parameters=parameter("assumed")),
        "alone": config(rows=0),
        "dependent": config(rows=0, parameters=parameter("dependent")),
        "too_narrow": config(rows=0, outputs="7"),
    }.items():
        models.export(repository / name, seeded(PointCloud), config=text)
    models.export(repository / "narrow", seeded(lambda: nn.Linear(6, 3)), config=config(outputs="5"))
    with Server(repository, "cpu*2", directory / "run") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def points(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 6), dtype=np.float32)


def answers(
    client: triton.InferenceServerClient, requests: list[tuple[str, list[triton.InferInput]]]
) -> list[triton.InferResult]:
    """Sends all requests at once. Returns the results in order."""
    replies: queue.Queue = queue.Queue()
    for i, (model, inputs) in enumerate(requests):
        client.async_infer(
            model,
            inputs,
            callback=lambda result, error, i=i: replies.put((i, result, error)),
        )
    results = {}
    for _ in requests:
        i, result, error = replies.get(timeout=CALL_SECONDS)
        assert error is None, error
        results[i] = result
    return [results[i] for i in range(len(requests))]


def test_too_small_request_for_row_mixing_program_is_rejected(tmp_path: Path) -> None:
    """Padding with a copy of a row, as for other models, would change the other rows."""
    example = torch.zeros(4, 6)
    program = tmp_path / "models/cloud/1/model.pt2"
    programs.save(program, seeded(PointCloud), [example], programs.any_batch([example], min=3))
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run") as server:
        with triton.InferenceServerClient(server.address) as client:
            name = client.get_model_metadata("cloud").inputs[0].name
            with pytest.raises(InferenceServerException, match="2 rows .expected at least 3"):
                client.infer("cloud", [infer_input(name, points(2, seed=0))])
            three = points(3, seed=0)
            result = client.infer("cloud", [infer_input(name, three)])
            assert_close(result.as_numpy("output__0"), expected(seeded(PointCloud), three))


@pytest.mark.parametrize("model", [*WITHOUT_CONFIG, "alone", "dependent"])
def test_requests_for_row_mixing_models_are_not_merged(
    client: triton.InferenceServerClient, model: str
) -> None:
    module = seeded(WITHOUT_CONFIG.get(model, (PointCloud, ""))[0])
    name = client.get_model_metadata(model).inputs[0].name
    clouds = [points(4 if i % 3 else 3, seed=i) for i in range(REQUESTS)] + [points(64, seed=1)]
    results = answers(client, [(model, [infer_input(name, cloud)]) for cloud in clouds])
    for cloud, result in zip(clouds, results, strict=True):
        assert_close(result.as_numpy("output__0"), expected(module, cloud))


@pytest.mark.parametrize("model", ["cloud_exported", "cloud_torchscript", "dependent"])
def test_metadata_reports_dependent_rows(
    client: triton.InferenceServerClient, model: str
) -> None:
    said = client.get_model_config(model, as_json=True)["config"]
    assert "max_batch_size" not in said  # 0 is omitted.
    assert said["input"][0]["dims"] == ["-1", "6"]
    assert said["output"][0]["dims"] == ["-1", "8"]
    assert said["parameters"]["row_independence"]["string_value"] == "dependent"
    assert said["parameters"]["row_independence.reason"]["string_value"]


def test_log_explains_why_requests_are_not_merged(server: Server) -> None:
    (line,) = (each for each in server.log.splitlines()
               if "'cloud_exported'" in each and "neither merged nor split" in each)
    assert "of output 'output__0'" in line


def test_batched_configuration_is_rejected_with_evidence(
    client: triton.InferenceServerClient,
) -> None:
    reason = reasons(client)["declared", "1"]
    for words in ("max_batch_size: 64", "of output 'output__0'", "row_independence", "assumed"):
        assert words in reason


def test_assumed_independence_is_not_tested(client: triton.InferenceServerClient) -> None:
    said = client.get_model_config("assumed", as_json=True)["config"]
    assert said["max_batch_size"] == 64
    assert said["parameters"]["row_independence"]["string_value"] == "assumed"


def test_output_of_unexpected_width_is_rejected(
    client: triton.InferenceServerClient,
) -> None:
    assert "[4, 3]" in reasons(client)["narrow", "1"]
    with model_control.refused(grpc.StatusCode.FAILED_PRECONDITION, "[2, 8]", "[-1, 7]"):
        infer(client, "too_narrow", {"x": points(2, seed=1)})


def test_restart_reads_the_cached_result(server: Server, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository / "cloud", seeded(PointCloud), "exported")
    for _ in range(2):
        (tmp_path / "run/ready.json").unlink(missing_ok=True)
        with Server(repository, "cpu*1", tmp_path / "run") as again:
            with triton.InferenceServerClient(again.address) as client:
                cloud = points(5, seed=1)
                result = infer(client, "cloud", {"x": cloud})
                assert_close(result.as_numpy("output__0"), expected(seeded(PointCloud), cloud))
        assert "neither merged nor split" in again.log
    assert (tmp_path / "run/data/row_tests.json").exists()


@pytest.mark.parametrize("format", ["torchscript", "pair"])
def test_published_row_mixing_version_does_not_merge(
    tmp_path: Path, format: str
) -> None:
    repository = tmp_path / "models"
    text = config(outputs="6")
    if format == "pair":
        models.export_pair(repository / "m", seeded(LearnsToMix), (torch.randn(2, 6),), config=text)
    else:
        models.export(repository / "m", seeded(LearnsToMix), config=text)
    with Server(repository, "cpu*2", tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            trainer = client.create_trainer("m", loss="mse", optimizer={"name": "SGD", "lr": 0.5})
            assert trainer.info().notes == ()
            x = points(8, seed=1)
            trainer.step({"x": x}, {"target": np.full((8, 6), 10, np.float32)})
            module = LearnsToMix()
            module.load_state_dict(
                {name: torch.from_numpy(value) for name, value in trainer.state_dict().items()}
            )
            assert module.share > 0.5
            trainer.publish("m")
        with triton.InferenceServerClient(server.address) as stock:
            clouds = [points(1 + i % 4, seed=i) for i in range(REQUESTS)]
            results = answers(stock, [("m", [infer_input("x", cloud)]) for cloud in clouds])
            for cloud, result in zip(clouds, results, strict=True):
                assert_close(result.as_numpy("output__0"), expected(module, cloud))
            assert independence_after_test(stock, "m") == "dependent"


class Counted(nn.Module):
    """Takes an integer that is not an index, and also returns one number for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        features = self.linear(x) / (1 + count)
        return features, features.mean()


COUNTED = """
max_batch_size: 64
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 6 ] },
  { name: "count" data_type: TYPE_INT64 dims: [ 1 ] }
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "mean" data_type: TYPE_FP32 } ]
"""


def test_published_version_merges_as_declared_without_proof(
    tmp_path: Path,
) -> None:
    models.export(tmp_path / "models/m", seeded(Counted), config=COUNTED)
    with Server(tmp_path / "models", "cpu*2", tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            loss = {"name": "mse", "output": "y"}
            trainer = client.create_trainer("m", loss=loss, optimizer={"name": "SGD", "lr": 0.1})
            inputs = {"x": points(4, seed=1), "count": np.ones((4, 1), np.int64)}
            for _ in range(2):
                trainer.step(inputs, {"target": np.zeros((4, 3), np.float32)})
                trainer.publish("m")
        with triton.InferenceServerClient(server.address) as stock:
            assert independence_after_test(stock, "m") == "unproven"
            said = stock.get_model_config("m", as_json=True)["config"]
    assert said["max_batch_size"] == 64


def test_large_version_serves_while_its_rows_are_tested(tmp_path: Path) -> None:
    """The test needs eight forward passes of 80 MiB of weights. Meanwhile, batches of any size run."""
    width = 2048
    module = seeded(lambda: nn.Sequential(*(nn.Linear(width, width) for _ in range(5))))
    models.export(tmp_path / "models/m", module, inputs=[torch.zeros(1, width)])
    random = np.random.default_rng(0)
    with Server(tmp_path / "models", "cpu*2", tmp_path / "run", data=False) as server:
        with (
            braid.connect(server.address) as client,
            triton.InferenceServerClient(server.address) as stock,
        ):
            trainer = client.create_trainer("m", loss="mse", optimizer={"name": "SGD", "lr": 0.1})
            x = random.standard_normal((4, width)).astype(np.float32)
            for _ in range(3):
                trainer.step({"input": x}, {"target": x})
                version = trainer.publish()
                state = trainer.state_dict()
                module.load_state_dict({name: torch.from_numpy(state[name]) for name in state})
                for rows in (1, 300):  # more than max_batch_size
                    batch = random.standard_normal((rows, width)).astype(np.float32)
                    (output,) = client.infer("m", {"input": batch}, version=version).values()
                    assert_close(output, expected(module, batch))
            assert independence_after_test(stock, "m") == "proven"


def test_row_mixing_model_trains_and_is_reported(
    server: Server, client: triton.InferenceServerClient
) -> None:
    with braid.connect(server.address) as trainers:
        trainer = trainers.create_trainer(
            "cloud_torchscript", loss="mse", optimizer={"name": "SGD", "lr": 0.1}
        )
        (note,) = trainer.info().notes
        assert "number of replicas" in note
        x = points(6, seed=1)
        assert trainer.step({"x": x}, {"target": np.zeros((6, 8), np.float32)}).step == 1
        trainer.delete()


def test_concurrent_requests_equal_single_requests(
    serve: Callable[..., Server], served_format: str
) -> None:
    with triton.InferenceServerClient(serve("cpu*2", served_format).address) as client:
        requests = [
            (name, random_inputs(client, name, rows, seed))
            for seed, rows in enumerate((1, 3, 2, 5, 1, 8, 2, 1))
            for name in models.names_in(served_format)
            if name != "slow"
        ]
        together = answers(client, requests)
        for (name, inputs), result in zip(requests, together, strict=True):
            alone = answers(client, [(name, inputs)])[0]
            for tensor in result.get_response().outputs:
                np.testing.assert_allclose(
                    result.as_numpy(tensor.name),
                    alone.as_numpy(tensor.name),
                    rtol=1e-5,
                    atol=1e-6,
                    err_msg=name,
                )


def random_inputs(
    client: triton.InferenceServerClient, model: str, rows: int, seed: int
) -> list[triton.InferInput]:
    random = np.random.default_rng(seed)
    inputs = []
    for tensor in client.get_model_metadata(model).inputs:
        shape = [rows, *(7 if size < 0 else size for size in tensor.shape[1:])]
        dtype = triton_to_np_dtype(tensor.datatype)
        numbers = random.integers(0, 2, shape)
        if tensor.datatype in ("BF16", "FP16", "FP32", "FP64"):
            numbers = random.standard_normal(shape)
        inputs.append(infer_input(tensor.name, numbers.astype(dtype), tensor.datatype))
    return inputs
