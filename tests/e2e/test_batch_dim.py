"""Models whose batch is not dim 0: inference and training in both formats equal PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from e2e.support import durable, jobs, long_training, oracle, training
from e2e.support.inference import infer_input
from e2e.support.jobs import JobServer
from e2e.support.long_training import Batch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 20
# Not divisible by 2 or 3.
ROWS = 11
LENGTHS = (5, 1, 9, 11)
# Time steps in each row of the dataset.
LENGTH = 5
SECONDS = 120
ADAM = {"name": "Adam", "lr": 1e-2}
FORMATS = ("pair", "torchscript")


class Recurrent(nn.Module):
    """Takes [time, batch, 3] and a state [1, batch, 6]. Views its input in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.lstm = nn.LSTM(4, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        flat = self.first(x.view(x.size(0) * x.size(1), 3))
        states, (hidden, _) = self.lstm(flat.view(x.size(0), x.size(1), 4), (h, h.cos()))
        return self.last(states), hidden


class Transformer(nn.Module):
    """Takes [time, batch, 8], but a mask [batch, time]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.layer(x, src_key_padding_mask=mask < 0.5)
        return self.last(hidden), hidden[0]


MODELS: dict[str, type[nn.Module]] = {"recurrent": Recurrent, "transformer": Transformer}
BATCH_DIMS = {
    "recurrent": {"x": 1, "h": 1, "y": 1, "state": 1},
    "transformer": {"x": 1, "y": 1},
}
DYNAMIC = {
    "recurrent": {"x": {0: ("time", 1, 16)}},
    "transformer": {"x": {0: ("time", 1, 16)}, "mask": {1: "time"}},
}
CASES = [(name, format) for name in MODELS for format in FORMATS]


def make(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]().double()


def inputs_of(name: str, rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + 100 * length + rows)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if name == "recurrent":
        return {"x": numbers(length, rows, 3), "h": numbers(1, rows, 6)}
    mask = (torch.rand(rows, length, generator=generator) < 0.7).double()
    mask[:, 0] = 1
    return {"x": numbers(length, rows, 8), "mask": mask}


def export(path: Path, name: str, format: str) -> None:
    result = braid.export(
        make(name),
        inputs_of(name, 4, 7),
        path,
        format=format,
        precisions=[],
        output_names=["y", "state"],
        dynamic=DYNAMIC[name],
        batch_dim=BATCH_DIMS[name],
    )
    assert result.format == format


def outputs_in_pytorch(name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return dict(zip(("y", "state"), make(name).eval()(**inputs)))


@pytest.fixture(scope="module")
def client_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[int], braid.Client]]:
    directory = tmp_path_factory.mktemp("batch_dim")
    for name, format in CASES:
        export(directory / "models" / f"{name}-{format}", name, format)
    with long_training.clients_of(directory / "models", directory / "run") as get:
        yield get


def assert_equals_pytorch(reply: dict, name: str, inputs: dict[str, Tensor]) -> None:
    wanted = outputs_in_pytorch(name, inputs)
    assert list(reply) == list(wanted)
    for output, value in wanted.items():
        np.testing.assert_allclose(reply[output], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "format"), CASES)
def test_concurrent_requests_of_several_rows_equal_pytorch(
    client_of: Callable[[int], braid.Client], name: str, format: str
) -> None:
    client = client_of(3)
    requests = [
        inputs_of(name, rows, length, seed)
        for seed in range(3)
        for length in (5, 1, 5)
        for rows in (1, 3, 5, 8)
    ]
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda given: client.infer(f"{name}-{format}", given), requests))
    for given, reply in zip(requests, replies):
        assert_equals_pytorch(reply, name, given)


@pytest.mark.parametrize(("name", "format"), CASES)
def test_a_request_is_cut_along_the_batch(
    client_of: Callable[[int], braid.Client], name: str, format: str
) -> None:
    """By the server into forward passes of 256 rows at most, and by the client into calls."""
    large, small = inputs_of(name, 600, 3), inputs_of(name, 7, 5)
    client = client_of(3)
    assert_equals_pytorch(client.infer(f"{name}-{format}", large), name, large)
    assert_equals_pytorch(client.infer(f"{name}-{format}", small, batch_size=3), name, small)


@pytest.mark.parametrize("format", FORMATS)
def test_metadata_has_the_batch_where_clients_have_it(
    client_of: Callable[[int], braid.Client], format: str
) -> None:
    model = client_of(3).model_metadata(f"transformer-{format}")
    assert [(each.name, list(each.shape)) for each in model.inputs] == [
        ("x", [-1, -1, 8]),
        ("mask", [-1, -1]),
    ]
    model = client_of(3).model_metadata(f"recurrent-{format}")
    assert [list(each.shape) for each in model.inputs] == [[-1, -1, 3], [1, -1, 6]]
    assert [list(each.shape) for each in model.outputs] == [[-1, -1, 2], [1, -1, 6]]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"h": torch.zeros(2, 4, 6, dtype=torch.float64)},
            r"inputs\[1\].shape: \[2, 4, 6\] does not fit input 'h' .* \(expected \[1, -1, 6\]",
        ),
        (
            {"x": torch.zeros(5, 4, dtype=torch.float64)},
            r"inputs\[0\].shape: \[5, 4\] does not fit input 'x' .* \(expected \[-1, -1, 3\]",
        ),
        (
            {"h": torch.zeros(1, 5, 6, dtype=torch.float64)},
            r"different numbers of rows: 'x' \[5, 4, 3\], 'h' \[1, 5, 6\] "
            r"\(expected the same dim 1\)",
        ),
        (
            {name: torch.zeros(each) for name, each in {"x": (5, 0, 3), "h": (1, 0, 6)}.items()},
            r"\[5, 0, 3\] of input 'x' has 0 rows",
        ),
    ],
)
def test_errors_show_shapes_as_the_client_sent_them(
    client_of: Callable[[int], braid.Client], format: str, change: dict, message: str
) -> None:
    client, model = client_of(3), f"recurrent-{format}"
    given = inputs_of("recurrent", 4, 5) | {name: each.double() for name, each in change.items()}
    with pytest.raises(braid.InvalidArgument, match=message):
        client.infer(model, given)
    with training.new_trainer(client, model, loss="mse", optimizer=ADAM) as trainer:
        with pytest.raises(braid.InvalidArgument, match=message):
            trainer.step(given, {"target": torch.zeros(5, 4, 2, dtype=torch.float64)})


def test_sizes_out_of_range_name_the_dim_of_the_client(
    client_of: Callable[[int], braid.Client],
) -> None:
    with pytest.raises(
        braid.InvalidArgument, match=r"dim 0 of input 'x' is 17 \(expected 1 to 16"
    ):
        client_of(3).infer("recurrent-pair", inputs_of("recurrent", 2, 17))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 3, 2), r"targets\[0\].shape: .* \[5, 3, 2\] .expected the inputs' 4 rows as dim 1"),
        ((6, 4, 2), r"targets\[0\].shape: .* FP64 \[6, 4, 2\], .* \(expected FP64 \[5, 4, 2\]\)"),
    ],
)
def test_targets_of_another_shape_are_rejected(
    client_of: Callable[[int], braid.Client], shape: tuple[int, ...], message: str
) -> None:
    with training.new_trainer(
        client_of(3), "recurrent-pair", loss="mse", optimizer=ADAM
    ) as trainer:
        with pytest.raises(braid.InvalidArgument, match=message):
            trainer.step(
                inputs_of("recurrent", 4, 5), {"target": torch.zeros(shape, dtype=torch.float64)}
            )


def batches(name: str) -> Iterator[Batch]:
    made = []
    for length in LENGTHS:
        given = inputs_of(name, ROWS, length)
        made.append((given, {"target": given["x"][:, :, :2].sin()}))
    return long_training.cycle(made, STEPS)


def loss_of(module: nn.Module, step: int, batch: Batch) -> Tensor:
    inputs, targets = batch
    return functional.mse_loss(module(**inputs)[0], targets["target"])


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batch": 2}, {"loss_mode": "per_replica"}],
    ids=["whole", "micro_batches", "per_replica"],
)
@pytest.mark.parametrize(("name", "format"), CASES)
def test_training_equals_pytorch(
    client_of: Callable[[int], braid.Client], name: str, format: str, options: dict, replicas: int
) -> None:
    wanted = long_training.in_pytorch(make(name), batches(name), ADAM, loss_of)
    actual = long_training.on_server(
        client_of(replicas),
        f"{name}-{format}",
        batches(name),
        loss="mse",
        optimizer=ADAM,
        **options,
    )
    oracle.assert_equal_runs(actual, wanted, 1e-9)


@pytest.mark.parametrize("format", FORMATS)
def test_a_loss_in_the_client_equals_pytorch(
    client_of: Callable[[int], braid.Client], format: str
) -> None:
    """Outputs and their gradients have the batch where the module has it."""
    given = inputs_of("recurrent", ROWS, 5)
    module = make("recurrent")
    outputs = module(**given)
    loss = outputs[0].square().sum() + outputs[1].sin().sum()
    loss.backward()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.step()
    with training.new_trainer(
        client_of(3),
        f"recurrent-{format}",
        loss_mode="client",
        optimizer={"name": "SGD", "lr": 0.1},
    ) as trainer:
        received = trainer.forward(given, keep_graph=True).outputs
        for name, output in zip(("y", "state"), outputs):
            np.testing.assert_allclose(received[name], output.detach(), rtol=0, atol=1e-12)
        gradients = {"y": 2 * received["y"], "state": np.cos(received["state"])}
        trainer.backward(gradients)
        trainer.optim_step()
        state = trainer.state_dict()
        with pytest.raises(
            braid.InvalidArgument,
            match=r"FP64 \[5, 3, 2\] .expected the output's FP64 \[5, 11, 2\]",
        ):
            trainer.forward(given, keep_graph=True)
            trainer.backward({"y": np.zeros((5, 3, 2))})
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("format", FORMATS)
def test_evaluation_equals_pytorch(client_of: Callable[[int], braid.Client], format: str) -> None:
    given = list(batches("recurrent"))[: len(LENGTHS)]
    module = make("recurrent").eval()
    with torch.no_grad():
        squares = [loss_of(module, 1, batch) * batch[1]["target"].numel() for batch in given]
    wanted = sum(squares).item() / sum(batch[1]["target"].numel() for batch in given)
    with training.new_trainer(
        client_of(3), f"recurrent-{format}", loss="mse", optimizer=ADAM
    ) as trainer:
        result = trainer.evaluate(given, metrics=["mse"])
    assert result.rows == len(LENGTHS) * ROWS
    assert result.loss == pytest.approx(wanted, abs=1e-12)
    assert result.metrics["mse"] == pytest.approx(wanted, abs=1e-12)


def test_a_published_version_keeps_the_batch_dim(client_of: Callable[[int], braid.Client]) -> None:
    given = inputs_of("transformer", 3, 5)
    client = client_of(1)
    with training.new_trainer(
        client, "transformer-pair", loss="mse", optimizer=ADAM
    ) as trainer:
        trainer.publish()
    assert_equals_pytorch(client.infer("transformer-pair", given), "transformer", given)


def test_fit_equals_pytorch(
    client_of: Callable[[int], braid.Client]
) -> None:
    made = list(batches("recurrent"))[: len(LENGTHS)]
    result = braid.fit(client_of(1), "recurrent-pair", made, loss="mse", optimizer=ADAM)
    wanted = long_training.in_pytorch(make("recurrent"), iter(made), ADAM, loss_of)
    np.testing.assert_allclose(result.losses, wanted.losses, rtol=0, atol=1e-12)
    result.trainer.delete()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Has rows.parquet with the columns x [LENGTH, 8], mask [LENGTH] and target [LENGTH, 2]."""
    directory = tmp_path_factory.mktemp("batch_dim_jobs")
    export(directory / "models/transformer", "transformer", "pair")
    with jobs.serving(directory, allow_client_shared_memory="true") as server:
        given = inputs_of("transformer", 4 * ROWS, LENGTH)
        x, mask = given["x"].transpose(0, 1), given["mask"]
        columns = {"x": x, "mask": mask, "target": x[..., :2].sin()}
        table = pa.table({name: nested(value.numpy()) for name, value in columns.items()})
        pq.write_table(table, server.tables / "rows.parquet")
        yield server


def nested(rows: np.ndarray) -> pa.Array:
    """Returns a column of fixed-size lists."""
    column = pa.array(rows.reshape(-1))
    for size in reversed(rows.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def test_jobs_read_and_write_single_rows(server: JobServer) -> None:
    """A row of a dataset has no batch dimension, so its layout is that of the model without it."""
    given = inputs_of("transformer", 4 * ROWS, LENGTH)
    data = {"path": "rows.parquet", "inputs": {"x": "x", "mask": "mask"}}
    with durable.connect(server) as client:
        scored = client.jobs.infer("transformer", data=data, output={"path": "y.parquet"})
        scores = pq.read_table(scored.wait(timeout=SECONDS).result.output)
        wanted = outputs_in_pytorch("transformer", given)["y"].transpose(0, 1)
        np.testing.assert_allclose(scores["y"].to_pylist(), wanted, rtol=0, atol=1e-12)

        trained = client.jobs.train(
            "transformer", data={**data, "targets": {"target": "target"}},
            shuffle=False, batch_size=ROWS, epochs=2, loss="mse", optimizer=ADAM,
        )  # fmt: skip
        trained.wait(timeout=SECONDS)
        losses = trained.metrics(["loss"])["loss"].values
    cut = [
        {"x": given["x"][:, at : at + ROWS], "mask": given["mask"][at : at + ROWS]}
        for at in range(0, 4 * ROWS, ROWS)
    ]
    made = [(each, {"target": each["x"][..., :2].sin()}) for each in cut]
    run = long_training.in_pytorch(make("transformer"), iter(2 * made), ADAM, loss_of)
    np.testing.assert_allclose(losses, run.losses, rtol=0, atol=1e-9)


def test_shared_memory_has_the_batch_where_clients_have_it(server: JobServer) -> None:
    given = inputs_of("transformer", 3, LENGTH)
    wanted = outputs_in_pytorch("transformer", given)["y"].numpy()
    key = f"/batch_dim_{server.process.pid}"
    size = given["x"].nbytes + wanted.nbytes
    region = shm.create_shared_memory_region("rows", key, size)
    try:
        shm.set_shared_memory_region(region, [given["x"].numpy()])
        with triton.InferenceServerClient(server.address) as client:
            client.register_system_shared_memory("rows", key, size)
            x = triton.InferInput("x", list(given["x"].shape), "FP64")
            x.set_shared_memory("rows", given["x"].nbytes)
            y = triton.InferRequestedOutput("y")
            y.set_shared_memory("rows", wanted.nbytes, offset=given["x"].nbytes)
            reply = client.infer(
                "transformer", [x, infer_input("mask", given["mask"].numpy())], outputs=[y]
            )
            assert list(reply.get_output("y").shape) == list(wanted.shape)
            found = shm.get_contents_as_numpy(
                region, np.float64, list(wanted.shape), offset=given["x"].nbytes
            )
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
            client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(region)
