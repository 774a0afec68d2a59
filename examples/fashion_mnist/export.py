#!/usr/bin/env python3
"""Exports the convnet that the demo trains, with random weights, into a model repository.

usage: export.py REPOSITORY

Writes REPOSITORY/fashion: config.pbtxt, and in the folder 1 an exported pair, the graphs of forward
and backward in model.pt2 with the weights beside it. A package runs on the kind of device that it
was exported on: GPUs where there are any, as the server takes them by itself.
"""

import pathlib
import sys

import braid
import torch

MODEL = "fashion"


class FashionNet(torch.nn.Module):
    """x: uint8 [B, 1, 28, 28], grey values as they are in the data set → logits [B, 10]."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(*self.block(1, 16), *self.block(16, 32))
        self.classifier = torch.nn.Linear(32 * 7 * 7, 10)

    @staticmethod
    def block(inputs, outputs):
        return (
            torch.nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(outputs),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Bytes travel and are normalized here: a quarter of what floats would take.
        x = (x.to(torch.float32) - 73.0) / 90.0
        return self.classifier(self.features(x).flatten(1))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = FashionNet().to(device)
    images = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8, device=device)
    result = braid.export(module, {"x": images}, pathlib.Path(sys.argv[1]) / MODEL, "pair")
    parameters = sum(parameter.numel() for parameter in module.parameters())
    print(
        f"{MODEL}: convnet with batch norm, {parameters} parameters, random weights; version "
        f"{result.version}, a {result.format} for {device}, compared with PyTorch"
    )


if __name__ == "__main__":
    main()
