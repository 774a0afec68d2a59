#!/usr/bin/env python3
"""Exports torchvision's resnet18, with a new last layer, into a model repository.

usage: export.py REPOSITORY [--pretrained]

Writes REPOSITORY/resnet18 with version 1. --pretrained downloads the weights of ImageNet; without it,
they are random.
"""

import pathlib
import sys

import braid
import torch
import torchvision

MODEL = "resnet18"
CLASSES = 3
SIZE = 32


def make_model(pretrained: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights="DEFAULT" if pretrained else None)
    model.fc = torch.nn.Linear(model.fc.in_features, CLASSES)
    return model


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[1:] not in ([], ["--pretrained"]):
        sys.exit(__doc__)
    model = make_model(pretrained=len(arguments) == 2)
    images = torch.rand(2, 3, SIZE, SIZE)
    braid.export(model, {"x": images}, pathlib.Path(arguments[0]) / MODEL, "torchscript")
    print(f"{MODEL}: {CLASSES} classes, images of {SIZE} x {SIZE} pixels")


if __name__ == "__main__":
    main()
