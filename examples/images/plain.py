#!/usr/bin/env python3
"""Trains and scores as train.yaml and score.yaml do, with PyTorch alone. Batches are in another order.

usage: plain.py FOLDER [EPOCHS]

Prints the loss and the accuracy on FOLDER/val.
"""

import pathlib
import sys

import torch
from export import SIZE, make_model
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

EPOCHS, BATCH_SIZE, LR = 8, 16, 0.002
TRANSFORMS = v2.Compose([
    v2.PILToTensor(),
    v2.Resize(36),
    v2.CenterCrop(SIZE),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])


def train(folder: pathlib.Path, epochs: int = EPOCHS) -> torch.nn.Module:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    loader = DataLoader(ImageFolder(folder / "train", TRANSFORMS), BATCH_SIZE, shuffle=True)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model.eval()


def evaluate(model: torch.nn.Module, folder: pathlib.Path) -> tuple[float, float]:
    """Returns the loss and the accuracy on the images of folder/val."""
    images, labels = next(iter(DataLoader(ImageFolder(folder / "val", TRANSFORMS), 1000)))
    with torch.no_grad():
        logits = model(images)
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    return torch.nn.functional.cross_entropy(logits, labels).item(), accuracy


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    epochs = int(sys.argv[2]) if len(sys.argv) == 3 else EPOCHS
    loss, accuracy = evaluate(train(folder, epochs), folder)
    print(f"loss {loss:.4f}  accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
