"""Loads or scores a folder of images with PyTorch's DataLoader, and prints the seconds.

    python -m bench.images.plain load|score FOLDER WORKERS BATCH_SIZE
"""

from __future__ import annotations

import sys
import time

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

TRANSFORMS = v2.Compose([
    v2.Resize(256),
    v2.CenterCrop(224),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])


def read(path: str) -> torch.Tensor:
    """Decodes with libjpeg-turbo, which is faster than Pillow."""
    return torchvision.io.decode_image(path, mode="RGB")


def main() -> None:
    what, folder, workers, batch_size = sys.argv[1:]
    torch.set_num_threads(int(workers))
    loader = DataLoader(
        ImageFolder(folder, TRANSFORMS, loader=read), int(batch_size), num_workers=int(workers)
    )
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    start = time.monotonic()
    rows = 0
    with torch.inference_mode():
        for images, _ in loader:
            rows += len(model(images) if what == "score" else images)
    assert rows == len(loader.dataset)
    print(time.monotonic() - start)


if __name__ == "__main__":
    main()
