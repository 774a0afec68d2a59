#!/usr/bin/env python3
"""Exports a text classifier with random weights and its tokenizer into a model repository.

usage: export.py REPOSITORY DATA

DATA is the directory that dataset.py wrote. Writes REPOSITORY/reviews with version 1, an exported pair,
tokenizer.json, and config.pbtxt, which says how the server makes token IDs of texts and which
integers the inputs hold.
"""

import json
import pathlib
import shutil
import sys

import braid
import torch

MODEL = "reviews"
TOKENS = 64  # an exported pair takes one length
TOKENIZER = "tokenizer.json"
DECODE = {
    "tokenizer": TOKENIZER,
    "max_length": TOKENS,
    "truncate": True,
    "pad_to_max_length": True,
    "mask": "mask",
}


class ReviewNet(torch.nn.Module):
    """Convolution over the embeddings of a text's tokens, mean over its tokens, and a linear layer.

    ids, mask: int64 [B, L]; mask is 1 for tokens and 0 for padding. Returns logits [B, 2].
    """

    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, 32)
        self.convolution = torch.nn.Conv1d(32, 64, 5, padding=2)
        self.classifier = torch.nn.Linear(64, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask.unsqueeze(1).to(torch.float32)
        features = self.convolution(self.embedding(ids).transpose(1, 2) * mask).relu()
        return self.classifier((features * mask).sum(2) / mask.sum(2))


def make_module(tokenizer):
    """Returns the module with the initial weights. tokenizer: path of tokenizer.json."""
    torch.manual_seed(0)
    vocabulary = json.loads(tokenizer.read_text())["model"]["vocab"]
    return ReviewNet(len(vocabulary))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    directory, data = pathlib.Path(sys.argv[1]) / MODEL, pathlib.Path(sys.argv[2])
    module = make_module(data / TOKENIZER)
    ranges = {"ids": f"0,{module.embedding.num_embeddings - 1}", "mask": "0,1"}
    tokens = torch.ones(4, TOKENS, dtype=torch.int64)
    result = braid.export(module, {"ids": tokens, "mask": tokens}, directory, "pair")
    shutil.copy(data / TOKENIZER, directory)
    with (directory / "config.pbtxt").open("a") as config:
        parameters = {"decode.ids": json.dumps(DECODE)}
        parameters |= {f"range.{name}": limits for name, limits in ranges.items()}
        for key, value in parameters.items():
            text = json.dumps(value)
            config.write(f'parameters {{ key: "{key}" value {{ string_value: {text} }} }}\n')
    count = sum(parameter.numel() for parameter in module.parameters())
    print(f"{MODEL}: {count} parameters, random weights; version {result.version}")


if __name__ == "__main__":
    main()
