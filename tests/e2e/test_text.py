"""Jobs over texts, which the server converts with Hugging Face's tokenizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import braid
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from e2e.support import durable, examples, jobs, models
from e2e.support.jobs import JobServer, tensor_of
from e2e.support.server import ROOT
from tokenizers import Tokenizer
from torch import Tensor, nn

EXAMPLE = ROOT / "examples/reviews"
TOKENIZERS = ROOT / "tests/unit/decode/tokenizers"
SECONDS = 120
COUNTER_CONFIG = """
max_batch_size: 16
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "sums" data_type: TYPE_INT64 dims: [ 2 ] } ]
"""
TEXTS = [
    "the quick brown fox",
    "",
    "Größe, ёлка, 日本語 and 👍🏽",
    "[CLS] isn't the first token; it's " + "long " * 60,
    "\n\n  spaces\u3000and\tﬁne ligatures",
]


class Counter(nn.Module):
    """Returns the sum of the token IDs, each multiplied by its position, and their number."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(1, ids.size(1) + 1, device=ids.device)
        return torch.stack([(ids * positions * mask).sum(1), mask.sum(1)], 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Serves "counter", and has texts.parquet and the tokenizers among its tables."""
    directory = tmp_path_factory.mktemp("text")
    models.export(directory / "models/counter", Counter(), config=COUNTER_CONFIG)
    with jobs.serving(directory) as server:
        table = pa.table({"id": range(len(TEXTS)), "text": TEXTS})
        pq.write_table(table, server.tables / "texts.parquet")
        for name in ("bert", "gpt2", "llama3", "t5"):
            file = f"{name}.json"
            (server.tables / file).write_bytes((TOKENIZERS / file).read_bytes())
        yield server


@pytest.fixture
def client(server: JobServer) -> Iterator[braid.Client]:
    with durable.connect(server) as client:
        yield client


def counter_data(**decode: object) -> dict[str, object]:
    decode = {"tokenizer": "bert.json", "mask": "mask", **decode}
    return {"path": "texts.parquet", "inputs": {"ids": {"column": "text", "decode": decode}}}


def sums(ids: list[int]) -> list[int]:
    return [sum(token * at for at, token in enumerate(ids, 1)), len(ids)]


def test_the_example_reaches_the_accuracy_of_pytorch(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    examples.run(EXAMPLE / "dataset.py", tables)
    examples.run(EXAMPLE / "export.py", tmp_path / "models", tables)
    [accuracy] = re.findall(r"accuracy ([0-9.]+)%", examples.run(EXAMPLE / "train_pytorch.py", tables))
    with jobs.serving(tmp_path) as server:
        trained = jobs.braid_json(server, "jobs", "submit", str(EXAMPLE / "train.yaml"), "--wait")
        assert trained["state"] == "SUCCEEDED"
        assert trained["metrics"]["accuracy"] == pytest.approx(float(accuracy) / 100, abs=0.003)
        scored = jobs.braid_json(server, "jobs", "submit", str(EXAMPLE / "score.yaml"), "--wait")
        assert scored["state"] == "SUCCEEDED"
        scores = pq.read_table(scored["output"])
        test = pq.read_table(tables / "test.parquet")
        assert scores.select(["id", "text", "label"]).equals(test)
        right = tensor_of(scores, "logits").argmax(1) == tensor_of(test, "label")
        assert right.mean() == pytest.approx(trained["metrics"]["accuracy"])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama3", "t5"])
def test_texts_have_the_tokens_of_pythons_tokenizers(client: braid.Client, name: str) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZERS / f"{name}.json"))
    for decode in ({}, {"special_tokens": False}, {"max_length": 8, "truncate": True}):
        tokenizer.no_truncation()
        if "truncate" in decode:
            tokenizer.enable_truncation(8)
        special = decode.get("special_tokens", True)
        encodings = tokenizer.encode_batch(TEXTS, add_special_tokens=special)
        result = client.jobs.infer(
            "counter",
            data=counter_data(tokenizer=f"{name}.json", **decode),
            output={"path": f"{name}.parquet", "overwrite": True},
        ).wait(timeout=SECONDS).result  # fmt: skip
        found = tensor_of(pq.read_table(result.output), "sums")
        assert found.tolist() == [sums(encoding.ids) for encoding in encodings]


def test_texts_that_are_too_long_fail_the_job_or_are_left_out(client: braid.Client) -> None:
    data = counter_data(max_length=50)
    output = {"path": "short.parquet", "keep": ["id"]}
    with pytest.raises(braid.JobError, match=r"row 3: the text has \d+ tokens"):
        client.jobs.infer("counter", data=data, output=output).wait(timeout=SECONDS)
    skipping = {**data, "on_unreadable": "skip"}
    result = client.jobs.infer("counter", data=skipping, output=output).wait(timeout=SECONDS).result
    assert result.skipped_rows == 1
    assert pq.read_table(result.output)["id"].to_pylist() == [0, 1, 2, 4]


@pytest.mark.parametrize("decode, message", [
    ({"tokenizer": "missing.json"}, "tokenizer: no file 'missing.json' in "),
    ({"tokenizer": "../bert.json"}, "expected a relative path without .."),
    ({"tokenizer": "texts.parquet"}, "texts.parquet': "),
    ({"max_length": 1}, "max_length: 1 (expected at least 2, the special tokens of a text)"),
])  # fmt: skip
def test_unusable_tokenizers_are_rejected_when_a_job_is_submitted(
    client: braid.Client, decode: dict[str, object], message: str
) -> None:
    with pytest.raises(braid.BraidError) as caught:
        client.jobs.infer("counter", data=counter_data(**decode), output={"path": "x.parquet"})
    assert "decode" in caught.value.message
    assert message in caught.value.message
