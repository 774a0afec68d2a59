#!/usr/bin/env python3
"""Writes a small folder of images: photo-like textures of three classes.

usage: dataset.py FOLDER

Writes FOLDER/train and FOLDER/val with a folder for each class, as for torchvision's ImageFolder.
"""

import pathlib
import sys

import numpy as np
from PIL import Image

# Angle of the stripes by class.
CLASSES = {"diagonal": 45, "horizontal": 90, "vertical": 0}
SPLITS = {"train": 32, "val": 8}  # images for each class


def stripes(angle: float, random: np.random.Generator) -> Image.Image:
    """Returns stripes with a random phase, width and size of the image, and noise."""
    height, width = random.integers(48, 80, 2)
    y, x = np.mgrid[:height, :width]
    turned = x * np.cos(np.radians(angle)) + y * np.sin(np.radians(angle))
    wave = np.sin(turned * random.uniform(0.5, 0.9) + random.uniform(0, 6))
    pixels = 128 + 70 * wave[..., None] + random.normal(0, 25, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    random = np.random.default_rng(0)
    for split, images in SPLITS.items():
        for name, angle in CLASSES.items():
            (folder / split / name).mkdir(parents=True)
            for index in range(images):
                stripes(angle, random).save(folder / split / name / f"{index}.jpg", quality=90)
    print(f"wrote {len(CLASSES) * sum(SPLITS.values())} images to {folder}")


if __name__ == "__main__":
    main()
