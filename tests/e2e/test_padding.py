"""Padding of rows of different lengths, in requests and in jobs, equals PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from e2e.support import durable, jobs, models
from e2e.support.jobs import JobServer
from e2e.support.server import Server
from torch import Tensor, nn

ROWS, BATCH, STEPS, SEED = 60, 4, 30, 5
CONFIG = """
max_batch_size: 2
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "logits" data_type: TYPE_FP64 dims: [ 2 ] } ]
"""
PAD = """
parameters {
  key: "pad.ids"
  value { string_value: '{"value": 7, "mask": "mask", "multiple": 8}' }
}
"""


class Bag(nn.Module):
    """A linear layer on the mean embedding of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.classifier = nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        weights = mask[..., None].to(torch.float64)
        mean = (self.embedding(ids) * weights).sum(1) / weights.sum(1)
        return {"logits": self.classifier(mean)}


class Recurrent(nn.Module):
    """Classifies texts by the LSTM's state after their last token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.classifier = nn.Linear(6, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        states, _ = self.lstm(self.embedding(ids))
        rows = torch.arange(ids.shape[0], device=ids.device)
        return {"logits": self.classifier(states[rows, mask.sum(1) - 1])}


MODULES: dict[str, type[nn.Module]] = {"bag": Bag, "recurrent": Recurrent}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[name]().double()


def tokens(count: int) -> list[list[int]]:
    generator = np.random.default_rng(1)
    return [generator.integers(0, 50, 1 + generator.integers(20)).tolist() for _ in range(count)]


def logits(module: nn.Module, lists: list[list[int]]) -> Tensor:
    """Returns PyTorch's logits for lists that are padded to the longest one."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(each) for each in lists], batch_first=True)
    lengths = torch.tensor([len(each) for each in lists])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return module(ids, mask)["logits"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    """Client of a server whose model "full" runs full batches only, of two rows."""
    directory = tmp_path_factory.mktemp("padding")
    full = """
    dynamic_batching { max_queue_delay_microseconds: 60000000 }
    parameters { key: "row_independence" value { string_value: "assumed" } }
    """
    models.export(directory / "models" / "bag", make("bag"), config=CONFIG + PAD)
    models.export(directory / "models" / "full", make("bag"), config=CONFIG + PAD + full)
    with Server(directory / "models", "cpu*1", directory / "run") as server:
        with braid.connect(server.address) as connected:
            yield connected


@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_padded_request_equals_pytorch(client: braid.Client, length: int) -> None:
    module = make("bag").eval()
    ids = torch.arange(2 * length).reshape(2, length) % 50
    with torch.no_grad():
        wanted = module(ids, torch.ones_like(ids))["logits"]
        last = torch.zeros_like(ids)
        last[:, -1] = 1
        wanted_of_last = module(ids, last)["logits"]
    np.testing.assert_allclose(client.infer("bag", {"ids": ids})["logits"], wanted, atol=1e-12)
    got = client.infer("bag", {"ids": ids, "mask": last})["logits"]
    np.testing.assert_allclose(got, wanted_of_last, atol=1e-12)


def test_requests_of_different_lengths_share_a_batch(client: braid.Client) -> None:
    """The queue delay is longer than the test: only a full batch runs."""
    module = make("bag").eval()
    requests = [[[3, 1, 4]], [[1, 5, 9, 2, 6, 5, 3]]]
    with ThreadPoolExecutor(2) as threads:
        replies = list(
            threads.map(lambda ids: client.infer("full", {"ids": np.array(ids)}), requests)
        )
    for ids, reply in zip(requests, replies):
        with torch.no_grad():
            np.testing.assert_allclose(reply["logits"], logits(module, ids), atol=1e-12)


def test_metadata_has_tensors_of_any_length(client: braid.Client) -> None:
    """Clients send tensors of any length, not bytes."""
    ids, mask = client.model_metadata("bag").inputs
    assert (ids.datatype, list(ids.shape)) == ("INT64", [-1, -1])
    assert (mask.datatype, list(mask.shape)) == ("INT64", [-1, -1])


def test_mask_of_another_length_is_rejected(client: braid.Client) -> None:
    ids, mask = np.ones((2, 3), np.int64), np.ones((2, 9), np.int64)
    with pytest.raises(braid.InvalidArgument, match="must match"):
        client.infer("bag", {"ids": ids, "mask": mask})


def losses(module: nn.Module, lists: list[list[int]], labels: list[int]) -> list[float]:
    """Trains as the job does, and returns the loss of each step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    # The server sorts by bytes.
    lengths = [8 * len(each) for each in lists]
    for rows in itertools.islice(jobs.batches(ROWS, BATCH, seed=SEED, lengths=lengths), STEPS):
        wanted = torch.tensor([labels[row] for row in rows])
        outputs = logits(module, [lists[row] for row in rows])
        loss = nn.functional.cross_entropy(outputs, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def write_data(server: JobServer) -> tuple[list[list[int]], list[int]]:
    lists = tokens(ROWS)
    labels = [int(7 in each) for each in lists]
    table = pa.table({"tokens": lists, "label": labels})
    pq.write_table(table, server.tables / "train.parquet", row_group_size=25)
    return lists, labels


@pytest.mark.parametrize("name", ["bag", "bag_pair", "recurrent"])
def test_jobs_train_and_score_lists_of_varying_length(tmp_path: Path, name: str) -> None:
    folder, base = tmp_path / "models" / name, name.removesuffix("_pair")
    config = CONFIG.replace("max_batch_size: 2", "max_batch_size: 16") + PAD
    if name == base:
        models.export(folder, make(base), config=config)
    else:
        ids = torch.arange(12).reshape(3, 4)
        example = {"ids": ids, "mask": torch.ones_like(ids)}
        dynamic = {"ids": {1: "length"}, "mask": {1: "length"}}
        models.export_pair(folder, make(base), example, config, dynamic=dynamic)
    with jobs.serving(tmp_path) as server, durable.connect(server) as client:
        lists, labels = write_data(server)
        data = {"path": "train.parquet", "inputs": {"ids": "tokens"}}
        job = client.jobs.train(
            name, data={**data, "targets": {"target": "label"}}, loss="cross_entropy",
            optimizer={"name": "SGD", "lr": 0.1}, batch_size=BATCH, steps=STEPS, seed=SEED,
        )  # fmt: skip
        job.wait(timeout=120)
        found = job.metrics(["loss"])["loss"].values
        scores = client.jobs.infer(name, data=data, output={"path": "scores.parquet"}, version=1)
        scores.wait(timeout=120)
        table = pq.read_table(server.outputs / "scores.parquet")
    np.testing.assert_allclose(found, losses(make(base).train(), lists, labels), rtol=1e-6)
    with torch.no_grad():
        wanted = logits(make(base).eval(), lists)
    np.testing.assert_allclose(np.array(table["logits"].to_pylist()), wanted, atol=1e-12)
