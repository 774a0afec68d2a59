#!/usr/bin/env python3
"""Exports the convnet that the demo trains, with random weights, into a model repository.

usage: export.py REPOSITORY

Writes REPOSITORY/fashion/1/model.pt: TorchScript with a recorded example, which tells the server
the model's input and output where there is no config.pbtxt.
"""

import pathlib
import sys
import warnings

import torch
from torch.utils.bundled_inputs import bundle_inputs

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, not gone
        module = torch.jit.script(FashionNet())
        example = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
        module = bundle_inputs(module, [(example,)])
        path = pathlib.Path(sys.argv[1]) / MODEL / "1" / "model.pt"
        path.parent.mkdir(parents=True)
        module.save(path)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    print(f"{MODEL}: convnet with batch norm, {parameters} parameters, random weights")


if __name__ == "__main__":
    main()
