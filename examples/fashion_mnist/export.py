#!/usr/bin/env python3
"""Exports the convnet that the demo trains, with random weights, into a model repository.

usage: export.py REPOSITORY

Writes REPOSITORY/fashion with config.pbtxt and version 1, an exported pair: the forward and backward
graphs in model.pt2, and the weights in a separate file. A package runs only on the kind of device on
which it was exported, so this script uses a GPU if there is one, like the server.
"""

import pathlib
import sys

import braid
import torch

MODEL = "fashion"


class FashionNet(torch.nn.Module):
    """Convnet from uint8 images [B, 1, 28, 28], with the data set's grey values, to logits [B, 10]."""

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
        # Normalizes here, so that clients send bytes, a quarter of the size of floats.
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
