#!/usr/bin/env python3
"""Exports the policy that actors.py trains, with random weights, into a model repository.

usage: export.py REPOSITORY

Writes REPOSITORY/policy: an MLP from the state of a cart-pole, float32 [B, 4], to the logits of its
two actions, float32 [B, 2].
"""

import pathlib
import sys

import braid
import torch
from torch import nn

MODEL = "policy"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    policy = nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )
    path = pathlib.Path(sys.argv[1]) / MODEL
    result = braid.export(policy, {"input": torch.randn(8, 4)}, path, output_names=["logits"])
    print(f"{MODEL}: version {result.version}, random weights")


if __name__ == "__main__":
    main()
