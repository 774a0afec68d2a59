#!/usr/bin/env python3
"""Trains the model of export.py as train.yaml does, with PyTorch and Python's `tokenizers`.

usage: train_pytorch.py DATA

DATA is the directory that dataset.py wrote. Prints the accuracy on test.parquet, that of the job.
"""

import pathlib
import sys

import pyarrow.parquet as pq
import torch
from export import TOKENIZER, TOKENS, make_module
from tokenizers import Tokenizer

EPOCHS, BATCH = 5, 100


def load(path, tokenizer):
    """Returns ids and mask, int64 [N, TOKENS], and the labels, int64 [N]."""
    table = pq.read_table(path)
    encodings = tokenizer.encode_batch(table["text"].to_pylist())
    ids = torch.tensor([encoding.ids for encoding in encodings])
    mask = torch.tensor([encoding.attention_mask for encoding in encodings])
    return ids, mask, torch.tensor(table["label"].to_pylist())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = pathlib.Path(sys.argv[1])
    tokenizer = Tokenizer.from_file(str(data / TOKENIZER))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS, pad_id=0, pad_token="[PAD]")
    module = make_module(data / TOKENIZER)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.002)
    tensors = load(data / "train.parquet", tokenizer)
    for _ in range(EPOCHS):
        for ids, mask, labels in zip(*(tensor.split(BATCH) for tensor in tensors), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(ids, mask), labels).backward()
            optimizer.step()
    ids, mask, labels = load(data / "test.parquet", tokenizer)
    with torch.no_grad():
        accuracy = (module(ids, mask).argmax(1) == labels).float().mean().item()
    print(f"accuracy {accuracy:.2%} of {len(labels)} test reviews")


if __name__ == "__main__":
    main()
