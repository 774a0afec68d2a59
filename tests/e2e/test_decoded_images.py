"""Compares the server's decoder of images with torchvision, bit for bit."""

from __future__ import annotations

import json
import math
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchvision = pytest.importorskip("torchvision")
from torchvision.io import ImageReadMode
from torchvision.transforms import InterpolationMode, v2

from e2e.support import image_files
from e2e.support.server import BINARY

PROGRAM = BINARY.with_name("braid-decode-files")
_INTERPOLATIONS = {
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
    "nearest": InterpolationMode.NEAREST,
}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Decoder:
    """A process of the program that decodes files."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        self._process.stdin.close()
        assert self._process.wait(30) == 0

    def decode(
        self, transforms: Sequence[dict], files: Sequence[Path], channels: int = 3, seed: int = 0,
        epoch: int = 0, **image
    ) -> tuple[torch.Tensor, dict[int, str]]:
        """Returns the tensor of the files that are readable, and the errors of the others."""
        spec = {"image": {"channels": channels, "transforms": list(transforms), **image}}
        request = {"decode": spec, "files": [str(file) for file in files], "seed": seed,
                   "epoch": epoch}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        assert "error" not in reply, reply["error"]
        dtype = {"UINT8": np.uint8, "FP32": np.float32}[reply["type"]]
        size = math.prod(reply["shape"]) * np.dtype(dtype).itemsize
        values = np.frombuffer(self._process.stdout.read(size), dtype)
        errors = {int(index): error for index, error in reply["unreadable"].items()}
        return torch.from_numpy(values.reshape(reply["shape"]).copy()), errors


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    decoder = Decoder()
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("images")
    paths = {}
    for name, content in image_files.files():
        paths[name] = directory / name
        paths[name].write_bytes(content)
    return paths


def torchvision_pixels(path: Path, channels: int) -> torch.Tensor:
    """Returns torchvision's pixels, with the differences that the decoder documents."""
    mode = ImageReadMode.RGB if channels == 3 or path.suffix == ".webp" else ImageReadMode.GRAY
    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pixels = torchvision.io.decode_image(content, mode)
    if pixels.dtype == torch.uint16:
        pixels = v2.functional.to_dtype(pixels, torch.uint8, scale=True)
    if channels == 1 and path.suffix == ".webp":
        weights = torch.tensor([19595, 38470, 7471]).view(3, 1, 1)
        pixels = ((pixels * weights).sum(0, keepdim=True) + 0x8000 >> 16).to(torch.uint8)
    return pixels


def torchvision_transform(transform: dict) -> torch.nn.Module:
    """Returns torchvision's form of a transform."""
    [(name, options)] = transform.items()
    if "interpolation" in options:
        options = {**options, "interpolation": _INTERPOLATIONS[options["interpolation"]]}
    if name == "to_float":
        return v2.ToDtype(torch.float32, scale=options.get("scale", True))
    return {
        "resize": v2.Resize,
        "center_crop": v2.CenterCrop,
        "random_crop": v2.RandomCrop,
        "random_resized_crop": v2.RandomResizedCrop,
        "random_horizontal_flip": v2.RandomHorizontalFlip,
        "random_vertical_flip": v2.RandomVerticalFlip,
        "normalize": v2.Normalize,
    }[name](**options)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_every_format_equal_torchvisions(decoder, files, channels):
    different = []
    for name, path in files.items():
        expected = torchvision_pixels(path, channels)
        whole = {"center_crop": {"size": list(expected.shape[1:])}}
        pixels, errors = decoder.decode([whole], [path], channels)
        if errors or not torch.equal(pixels[0], expected):
            different.append((name, errors or (pixels[0].int() - expected.int()).abs().max()))
    assert not different


def _resizes() -> Iterator[list[dict]]:
    for interpolation in _INTERPOLATIONS:
        for size in (32, [32], [20, 70], [200, 150], [64, 48], 7, [1, 2]):
            resize = {"resize": {"size": size, "interpolation": interpolation}}
            yield [resize, {"center_crop": {"size": 24}}]
            yield [{"center_crop": {"size": [90, 45]}}, resize, {"center_crop": {"size": 30}}]
            yield [{"to_float": {}}, resize, {"center_crop": {"size": [30, 20]}}]
            yield [{"random_vertical_flip": {"p": 1}}, {"random_horizontal_flip": {"p": 1}},
                   resize, {"center_crop": {"size": 24}}, {"to_float": {"scale": False}}]


def _crops() -> Iterator[list[dict]]:
    normalize = {"normalize": {"mean": MEAN, "std": STD}}
    flip = {"random_horizontal_flip": {"p": 1.0}}
    for size in (1, 16, [48, 64], [33, 18], 231, [300, 5], [5, 301]):
        crop = {"center_crop": {"size": size}}
        yield [crop]
        yield [crop, flip]
        yield [flip, crop, {"to_float": {}}]
        yield [{"to_float": {}}, crop, normalize]
        yield [{"to_float": {}}, normalize, crop, flip]
        yield [crop, {"to_float": {"scale": False}}, normalize, normalize]
        yield [crop, {"to_float": {}}, flip, normalize, {"random_vertical_flip": {"p": 1}}]
        yield [crop, {"to_float": {}}, {"to_float": {"scale": False}},
               {"normalize": {"mean": [0.5], "std": [0.3]}}]


def _presets() -> Iterator[list[dict]]:
    normalize = {"normalize": {"mean": MEAN, "std": STD}}
    for short, size in ((256, 224), (232, 224), (342, 299), (40, 32)):
        for interpolation in _INTERPOLATIONS:
            yield [{"resize": {"size": [short], "interpolation": interpolation}},
                   {"center_crop": {"size": [size]}}, {"to_float": {}}, normalize]
    # Random transforms whose result does not depend on chance.
    whole = {"scale": [1, 1], "ratio": [1, 1]}
    for interpolation in _INTERPOLATIONS:
        resized = {"random_resized_crop": {"size": [32, 40], "interpolation": interpolation,
                                           **whole}}
        yield [{"center_crop": {"size": 64}}, resized, {"random_horizontal_flip": {"p": 0}}]
        yield [{"center_crop": {"size": 64}}, {"to_float": {}}, resized, normalize]
    for padding in (0, 4):
        size = 64 + 2 * padding
        yield [{"center_crop": {"size": 64}},
               {"random_crop": {"size": size, "padding": padding}}, {"to_float": {}}, normalize]


TRANSFORMS = [*_resizes(), *_crops(), *_presets()]


def test_transforms_equal_torchvisions(decoder, files):
    paths = [files[name] for name in ("100x231_75_4:2:0.jpg", "64x48_60_4:4:4.jpg",
                                      "33x17_100_4:2:2_p.jpg", "plain4_37x50.png",
                                      "q90_60x81.webp")]
    pixels = [torchvision_pixels(path, 3) for path in paths]
    different = []
    for transforms in TRANSFORMS:
        rows, errors = decoder.decode(transforms, paths)
        assert not errors
        composed = v2.Compose([torchvision_transform(transform) for transform in transforms])
        for path, row, image in zip(paths, rows, pixels, strict=True):
            expected = composed(image)
            if not torch.equal(row, expected):
                difference = (row.double() - expected.double()).abs().max()
                different.append((transforms, path.name, difference.item()))
    assert not different


def test_gray_images_are_transformed_as_torchvision_does(decoder, files):
    paths = [files[name] for name in ("gray_64x48.jpg", "L_37x50.png", "100x231_75_4:2:0.jpg")]
    normalize = {"normalize": {"mean": 0.45, "std": [0.25]}}
    for interpolation in _INTERPOLATIONS:
        transforms = [{"resize": {"size": 30, "interpolation": interpolation}},
                      {"center_crop": {"size": 28}}, {"to_float": {}}, normalize]
        rows, _ = decoder.decode(transforms, paths, channels=1)
        expected_transforms = [torchvision_transform(transform) for transform in transforms[:-1]]
        composed = v2.Compose([*expected_transforms, v2.Normalize([0.45], [0.25])])
        for path, row in zip(paths, rows, strict=True):
            assert torch.equal(row, composed(torchvision_pixels(path, 1)))


def test_unreadable_files_are_errors_as_in_torchvision(decoder, tmp_path):
    good = image_files.encoded(image_files.picture(20, 20), "jpeg")
    contents = [good, good[:-2], good[:-50], good[:30], b"", b"GIF89a" + bytes(20),
                image_files.animation(), good]
    paths = [tmp_path / str(index) for index in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    rows, errors = decoder.decode([{"center_crop": {"size": 20}}], paths)
    assert len(rows) == 2
    assert {index: error.split(" (")[0] for index, error in errors.items()} == {
        1: "row 1: JPEG file is truncated",
        2: "row 2: JPEG file is truncated",
        3: "row 3: JPEG file is truncated",
        4: "row 4: is empty",
        5: r'row 5: starts with "GIF89a\x00\x00"',
        6: "row 6: WebP file is an animation",
    }
    for index in (1, 2, 3):
        with pytest.raises(RuntimeError):
            torchvision_pixels(paths[index], 3)


@pytest.fixture(scope="module")
def coordinates(tmp_path_factory) -> Path:
    """An image of 60 x 100 pixels whose red is the row and whose green is the column."""
    path = tmp_path_factory.mktemp("coordinates") / "coordinates.png"
    y, x = np.mgrid[0:60, 0:100]
    path.write_bytes(image_files.png(np.stack([y, x, x * 0 + 7], -1).astype(np.uint8)))
    return path


def test_random_crops_cover_all_windows_evenly(decoder, coordinates):
    crops = [{"random_crop": {"size": [58, 90], "padding": 2}}, {"center_crop": {"size": 2}}]
    rows, _ = decoder.decode(crops, [coordinates] * 1500, seed=5)
    tops, lefts = rows[:, 0, 0, 0].int() - 28, rows[:, 1, 0, 0].int() - 44
    assert torch.equal(tops.unique(), torch.arange(-2, 5))
    assert torch.equal(lefts.unique(), torch.arange(-2, 13))
    for starts in (tops, lefts):
        counts = torch.unique(starts, return_counts=True)[1].double()
        expected = len(starts) / len(counts)
        # Chi-squared per degree of freedom.
        assert ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1) < 2.5


def test_random_resized_crops_are_distributed_as_torchvisions(decoder, coordinates):
    count = 1500
    crop = {"random_resized_crop": {"size": [50, 50], "interpolation": "nearest"}}
    rows, _ = decoder.decode([crop], [coordinates] * count, seed=6)
    first, last = rows[:, :2, 0, 0].double(), rows[:, :2, -1, -1].double()
    # Pixel i of 50 shows row floor(i * height / 50) of the window.
    height, width = ((last - first + 0.5) * 50 / 49).unbind(1)
    windows = {"top": first[:, 0], "left": first[:, 1], "area": height * width,
               "ratio": (width / height).log()}

    torch.manual_seed(0)
    image = torch.zeros(3, 60, 100, dtype=torch.uint8)
    transform = v2.RandomResizedCrop(50)
    drawn = [transform.make_params([image]) for _ in range(count)]
    tops, lefts, heights, widths = (
        torch.tensor([window[key] for window in drawn]).double()
        for key in ("top", "left", "height", "width")
    )
    expected = {"top": tops, "left": lefts, "area": heights * widths,
                "ratio": (widths / heights).log()}
    for name, values in windows.items():
        assert _largest_gap(values, expected[name]) < 1.95 * math.sqrt(2 / count) + 0.03, name


def _largest_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Returns the statistic of Kolmogorov and Smirnov for two samples."""
    at = torch.cat([a, b])
    shares = [(sample.sort().values, len(sample)) for sample in (a, b)]
    first, second = (torch.searchsorted(values, at, right=True) / n for values, n in shares)
    return (first - second).abs().max().item()


def test_flips_have_their_probability_and_are_independent(decoder, coordinates):
    flips = [{"random_horizontal_flip": {"p": 0.3}}, {"random_vertical_flip": {"p": 0.6}},
             {"center_crop": {"size": 2}}]
    rows, _ = decoder.decode(flips, [coordinates] * 3000, seed=9)
    vertical, horizontal = (rows[:, :2, 0, 0] > rows[:, :2, 1, 1]).double().unbind(1)
    assert abs(horizontal.mean() - 0.3) < 0.03
    assert abs(vertical.mean() - 0.6) < 0.03
    assert abs((horizontal * vertical).mean() - 0.18) < 0.03


def test_random_numbers_depend_on_seed_epoch_and_row_only(decoder, coordinates):
    crop = [{"random_resized_crop": {"size": 16}}, {"random_horizontal_flip": {}}]
    rows, _ = decoder.decode(crop, [coordinates] * 20, seed=1)
    fewer, _ = decoder.decode(crop, [coordinates] * 10, seed=1)
    assert torch.equal(rows[:10], fewer)
    assert not torch.equal(rows[0], rows[1])
    for seed, epoch in ((2, 0), (1, 1)):
        others, _ = decoder.decode(crop, [coordinates] * 20, seed=seed, epoch=epoch)
        assert not torch.equal(rows[0], others[0])
