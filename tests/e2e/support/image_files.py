"""Image files of the formats, color types and encodings that the server decodes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

# Passes of Adam7: first row, first column, distance of rows, distance of columns.
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
          (1, 0, 2, 1))
# Bytes of the color type in PNG's header, by channels.
_PNG_COLOR_TYPES = {1: 0, 3: 2, 2: 4, 4: 6}


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Returns UINT8 pixels with gradients, edges and noise, [height, width, channels]."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    layers = []
    for _ in range(channels):
        a, b, c = random.uniform(0.01, 0.1, 3)
        waves = np.sin(a * x + b * y) + np.sin(c * (x - y)) + np.sin(b * x * 3)
        radius = np.hypot(x - random.uniform(0, width), y - random.uniform(0, height))
        layers.append(90 + 30 * waves + 60 * (radius < min(height, width) / 3))
    noise = random.normal(0, 6, (height, width, channels))
    return np.clip(np.stack(layers, -1) + noise, 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray | Image.Image, format: str, mode: str | None = None,
            **options) -> bytes:
    """Encodes pixels with Pillow, converted to `mode` first."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, format, **options)
    return file.getvalue()


def png(samples: np.ndarray, interlaced: bool = False, chunks: tuple = ()) -> bytes:
    """Encodes UINT8 or UINT16 samples, [height, width, channels], also as Pillow cannot.

    chunks: (type, content) pairs that precede the pixels.
    """
    height, width, channels = samples.shape
    samples = samples.astype(samples.dtype.newbyteorder(">"))
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    rows = b"".join(
        b"\0" + row.tobytes()
        for top, left, y, x in passes
        for row in samples[top::y, left::x]
        if row.size
    )
    header = struct.pack(">IIBBBBB", width, height, 8 * samples.itemsize,
                         _PNG_COLOR_TYPES[channels], 0, 0, interlaced)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(type: bytes, content: bytes) -> bytes:
    return (struct.pack(">I", len(content)) + type + content +
            struct.pack(">I", zlib.crc32(type + content)))


def files() -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of files without an error."""
    yield from _jpeg_files()
    yield from _png_files()
    yield from _webp_files()


def _jpeg_files() -> Iterator[tuple[str, bytes]]:
    sizes = ((1, 1), (1, 40), (33, 17), (64, 48), (100, 231))
    for number, (height, width) in enumerate(sizes):
        pixels = picture(height, width, seed=number)
        for quality in (5, 60, 75, 100):
            for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
                for progressive in (False, True):
                    name = f"{height}x{width}_{quality}_{subsampling}{'_p' * progressive}.jpg"
                    yield name, encoded(pixels, "jpeg", quality=quality, subsampling=subsampling,
                                        progressive=progressive)
        yield f"gray_{height}x{width}.jpg", encoded(pixels, "jpeg", "L")
        yield f"cmyk_{height}x{width}.jpg", encoded(pixels, "jpeg", "CMYK")
        yield f"rgb_{height}x{width}.jpg", encoded(pixels, "jpeg", keep_rgb=True)
        yield f"restarts_{height}x{width}.jpg", encoded(pixels, "jpeg", restart_marker_rows=1)
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turned to the right.
    yield "turned.jpg", encoded(picture(40, 60), "jpeg", exif=exif)
    yield "icc.jpg", encoded(picture(40, 60), "jpeg", icc_profile=b"p" * 200_000)
    yield "cmyk_noise.jpg", encoded(_noise(64, 64, 4, "CMYK"), "jpeg", quality=98)


def _png_files() -> Iterator[tuple[str, bytes]]:
    for height, width in ((1, 1), (5, 3), (37, 50)):
        size = f"{height}x{width}.png"
        pixels = picture(height, width)
        for mode in ("RGB", "L", "LA", "RGBA", "1"):
            yield f"{mode}_{size}", encoded(pixels, "png", mode)
        for colors in (2, 4, 16, 256):
            palette = Image.fromarray(pixels).quantize(colors)
            yield f"palette{colors}_{size}", encoded(palette, "png")
            yield f"palette{colors}_alpha_{size}", encoded(palette, "png", transparency=1)
        yield f"transparent_gray_{size}", encoded(pixels, "png", "L", transparency=90)
        yield f"transparent_rgb_{size}", encoded(pixels, "png", transparency=(90, 90, 90))
        for channels in (1, 2, 3, 4):
            layers = picture(height, width, channels, seed=5)
            deep = layers.astype(np.uint16) * 256 + layers[::-1, ::-1]
            for interlaced in (False, True):
                kind = f"{channels}{'_interlaced' * interlaced}_{size}"
                yield f"deep{kind}", png(deep, interlaced)
                yield f"plain{kind}", png(layers, interlaced)
        gamma = (b"gAMA", struct.pack(">I", 45_455))
        yield f"gamma_{size}", png(pixels, chunks=(gamma,))
        yield f"text_{size}", png(pixels, chunks=(
            (b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 100_000)),) * 3)


def _webp_files() -> Iterator[tuple[str, bytes]]:
    for height, width in ((1, 1), (5, 3), (60, 81)):
        pixels = picture(height, width, 4)
        for name, options in (("lossless", {"lossless": True}), ("q10", {"quality": 10}),
                              ("q90", {"quality": 90})):
            size = f"{height}x{width}.webp"
            yield f"{name}_{size}", encoded(pixels, "webp", "RGB", **options)
            yield f"{name}_alpha_{size}", encoded(pixels, "webp", **options)


def _noise(height: int, width: int, channels: int, mode: str) -> Image.Image:
    random = np.random.default_rng(1)
    return Image.frombytes(mode, (width, height),
                           random.integers(0, 256, height * width * channels, np.uint8).tobytes())


def animation() -> bytes:
    """Returns a WebP file of two frames."""
    frames = [Image.fromarray(picture(8, 8, seed=seed)) for seed in range(2)]
    return encoded(frames[0], "webp", save_all=True, append_images=frames[1:], lossless=True)
