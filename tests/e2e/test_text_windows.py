"""Inference jobs that score texts of similar length together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
from e2e.support import durable, jobs, models
from e2e.support.jobs import JobServer, tensor_of
from e2e.support.polling import wait_until
from tokenizers import models as token_models
from tokenizers import pre_tokenizers
from torch import Tensor, nn

ROWS, LONGEST, SECONDS = 20_000, 60, 60
WORDS = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(100))]
CONFIG = """
max_batch_size: 16
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [
  { name: "sums" data_type: TYPE_INT64 dims: [ 2 ] },
  { name: "width" data_type: TYPE_INT64 dims: [ 1 ] }
]
"""


class Widths(nn.Module):
    """Returns the sum of the token IDs, each multiplied by its position, and their number.

    The second output is the number of columns of the batch. The layer takes time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 64)
        self.wide = nn.Linear(64, 1024)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        positions = torch.arange(1, ids.size(1) + 1, device=ids.device)
        tokens = self.wide(self.embedding(ids)).sum(2)
        no_op = (tokens.sum(1) * 0.0).to(torch.int64)
        sums = torch.stack([(ids * positions * mask).sum(1) + no_op, mask.sum(1)], 1)
        return {"sums": sums, "width": torch.full_like(mask[:, :1], ids.size(1))}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    models.export(tmp_path / "models/widths", Widths(), config=CONFIG)
    with jobs.serving(tmp_path) as server:
        yield server


def write_texts(server: JobServer) -> np.ndarray:
    """Writes texts, of which some are null, and returns the sums that the model has for them."""
    random = np.random.default_rng(0)
    texts: list[str | None] = []
    sums = []
    for length in random.integers(1, LONGEST + 1, ROWS):
        tokens = random.integers(2, len(WORDS), length)
        texts.append(" ".join(WORDS[token] for token in tokens))
        sums.append([int((tokens * np.arange(1, length + 1)).sum()), length])
    for row in range(0, ROWS, 997):
        texts[row] = None
    table = pa.table({"id": range(ROWS), "text": texts})
    pq.write_table(table, server.tables / "texts.parquet", row_group_size=7000)
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(token_models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(server.tables / "tokenizer.json"))
    return np.array(sums)


def submit(client: braid.Client) -> braid.Job:
    decode = {"tokenizer": "tokenizer.json", "mask": "mask"}
    return client.jobs.infer(
        "widths",
        data={
            "path": "texts.parquet",
            "inputs": {"ids": {"column": "text", "decode": decode}},
            "on_unreadable": "skip",
        },
        batch_size=16,
        output={"path": "scores.parquet", "keep": ["id"]},
    )  # fmt: skip


def check(result: braid.JobResult, sums: np.ndarray) -> pa.Table:
    """Checks that the output has the readable rows in the order of the data."""
    table = pq.read_table(result.output)
    ids = np.array([row for row in range(ROWS) if row % 997 != 0])
    assert result.skipped_rows == ROWS - len(ids)
    np.testing.assert_array_equal(table["id"].to_numpy(), ids)
    np.testing.assert_array_equal(tensor_of(table, "sums"), sums[ids])
    return table


def test_texts_of_similar_length_are_padded_together_and_written_in_order(
    server: JobServer,
) -> None:
    sums = write_texts(server)
    with durable.connect(server) as client:
        table = check(submit(client).wait(timeout=SECONDS).result, sums)
    columns = tensor_of(table, "width").sum()
    tokens = tensor_of(table, "sums")[:, 1].sum()
    # Requests of neighbours would have LONGEST columns, twice as many as there are tokens.
    assert columns < 1.5 * tokens


def test_an_interrupted_job_writes_each_text_once_in_order(server: JobServer) -> None:
    sums = write_texts(server)
    with durable.connect(server) as client:
        job = submit(client)
        wait_until(lambda: job.info().progress.rows > 0, SECONDS)
        server.start_again()
        info = job.wait(timeout=SECONDS)
    assert info.attempts == 2
    check(info.result, sums)
