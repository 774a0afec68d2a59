"""Order in which training jobs use texts that are padded to the longest one of a batch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import torch
from e2e.support import durable, jobs, models
from e2e.support.jobs import JobServer
from tokenizers import models as token_models
from tokenizers import pre_tokenizers
from torch import Tensor, nn

ROWS, BATCH, STEPS, SEED = 230, 4, 90, 5
WORDS = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(30))]
CONFIG = """
max_batch_size: 16
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


class Bag(nn.Module):
    """A linear layer on the mean embedding of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 8)
        self.classifier = nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weights = mask.unsqueeze(2).to(torch.float32)
        return self.classifier((self.embedding(ids) * weights).sum(1) / weights.sum(1))


def write_data(server: JobServer) -> tuple[list[str], list[int]]:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[2:], 1 + random.integers(20))) for _ in range(ROWS)]
    labels = [int("w7" in text) for text in texts]
    pq.write_table(pa.table({"text": texts, "label": labels}), server.tables / "train.parquet")
    tokenizer().save(str(server.tables / "tokenizer.json"))
    return texts, labels


def tokenizer() -> tokenizers.Tokenizer:
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(token_models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def losses(module: nn.Module, texts: list[str], labels: list[int]) -> list[float]:
    """Trains as the job does, and returns the loss of each step."""
    encode = tokenizer()
    encode.enable_padding(pad_id=0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    lengths = [len(text) for text in texts]
    for rows in itertools.islice(jobs.batches(ROWS, BATCH, seed=SEED, lengths=lengths), STEPS):
        encodings = encode.encode_batch([texts[row] for row in rows])
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        wanted = torch.tensor([labels[row] for row in rows])
        loss = torch.nn.functional.cross_entropy(module(ids, mask), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_batches_have_texts_of_similar_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Bag()
    models.export(tmp_path / "models/bag", module, config=CONFIG)
    with jobs.serving(tmp_path) as server, durable.connect(server) as client:
        texts, labels = write_data(server)
        job = client.jobs.train(
            "bag",
            data={
                "path": "train.parquet",
                "inputs": {"ids": {
                    "column": "text",
                    "decode": {"tokenizer": "tokenizer.json", "mask": "mask"},
                }},
                "targets": {"target": "label"},
            },
            loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1},
            batch_size=BATCH, steps=STEPS, seed=SEED,
        )  # fmt: skip
        job.wait(timeout=120)
        found = job.metrics(["loss"])["loss"].values
    np.testing.assert_allclose(found, losses(module.train(), texts, labels), rtol=1e-4)
