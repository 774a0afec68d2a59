"""Compares the decoding of JPEG files on one thread with torchvision, and prints a table."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchvision
from torchvision.transforms import v2

from bench.common.table import alternate, heading, row
from e2e.support import image_files

BATCH = 64
SIZE = (375, 500)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_NORMALIZE = {"normalize": {"mean": MEAN, "std": STD}}
CASES = {
    "resize, crop": (
        [{"resize": {"size": 256}}, {"center_crop": {"size": 224}}, {"to_float": {}}, _NORMALIZE],
        [v2.Resize(256), v2.CenterCrop(224)],
    ),
    "random resized crop, flip": (
        [{"random_resized_crop": {"size": 224}}, {"random_horizontal_flip": {}},
         {"to_float": {}}, _NORMALIZE],
        [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()],
    ),
}


class BraidSide:
    """Process of braid-bench-images."""

    def __init__(self, program: Path, transforms: list[dict], paths: list[Path]) -> None:
        decode = json.dumps({"image": {"transforms": transforms}})
        self._process = subprocess.Popen([program, decode, *paths], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def images_per_second(self, seconds: float) -> float:
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


class TorchvisionSide:
    """A loop that does the work of a worker process of PyTorch's DataLoader."""

    def __init__(self, transforms: list[torch.nn.Module], paths: list[Path]) -> None:
        normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self._transform = v2.Compose([*transforms, *normalize])
        self._files = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
                       for path in paths]

    def images_per_second(self, seconds: float) -> float:
        start = time.thread_time()
        files = itertools.cycle(self._files)
        for batch in itertools.count(1):
            torch.stack([self._decoded(next(files)) for _ in range(BATCH)])
            spent = time.thread_time() - start
            if spent >= seconds:
                return batch * BATCH / spent

    def _decoded(self, file: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = torchvision.io.decode_image(file, torchvision.io.ImageReadMode.RGB)
        return self._transform(pixels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, default="build/release/bin/braid-bench-images",
                        help="braid-bench-images (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2,
                        help="CPU time of a measurement (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{number}.jpg" for number in range(BATCH)]
        for number, path in enumerate(paths):
            pixels = image_files.picture(*SIZE, seed=number)
            path.write_bytes(image_files.encoded(pixels, "jpeg", quality=90))
        size = sum(path.stat().st_size for path in paths) / len(paths)
        print(f"JPEG files of {SIZE[1]} x {SIZE[0]} pixels and {size / 1000:.0f} kB, torchvision "
              f"{torchvision.__version__}")
        for case, (transforms, modules) in CASES.items():
            braid = BraidSide(arguments.program, transforms, paths)
            other = TorchvisionSide(modules, paths)
            results = alternate(arguments.rounds,
                                lambda: braid.images_per_second(arguments.seconds),
                                lambda: other.images_per_second(arguments.seconds))
            braid.close()
            heading(f"{case}, images per second of CPU time", arguments.rounds)
            row("Braid", [ours for ours, _ in results], ".0f")
            row("torchvision", [theirs for _, theirs in results], ".0f")
            row("ratio", [ours / theirs for ours, theirs in results], target=1.2)


if __name__ == "__main__":
    sys.exit(main())
