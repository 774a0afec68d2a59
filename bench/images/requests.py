"""Compares a request with a JPEG file with the decoding of the file and a request with its tensor.

.venv/bin/python bench/images/requests.py prints a table for bench/RESULTS.md. Takes about one
minute.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import braid
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchvision
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.common.table import alternate, heading, row  # noqa: E402
from e2e.support import metrics, models  # noqa: E402
from e2e.support.server import Server  # noqa: E402

ROUNDS, REQUESTS = 20, 20
DECODE = {
    "image": {
        "transforms": [
            {"resize": {"size": [256]}},
            {"center_crop": {"size": [224]}},
            {"to_float": {}},
            {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
        ]
    }
}
CONFIG = f"""
max_batch_size: 32
input [ {{ name: "image" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ 1000 ] }} ]
parameters {{ key: "decode.image" value {{ string_value: '{json.dumps(DECODE)}' }} }}
parameters {{ key: "row_independence" value {{ string_value: "assumed" }} }}
"""


def jpeg_file() -> bytes:
    """Returns a JPEG file of 500 x 375 pixels, 79 kB."""
    noise = np.random.default_rng(1).integers(0, 256, (94, 125, 3), np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC)
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def decode_seconds(server: Server) -> float:
    return metrics.scrape(server.metrics_url).value("braid_decode_busy_seconds_total", model="net")


def mean_seconds(client: braid.Client, image: list[bytes] | np.ndarray) -> float:
    start = time.perf_counter()
    for _ in range(REQUESTS):
        client.infer("net", {"image": image})
    return (time.perf_counter() - start) / REQUESTS


def main() -> None:
    file = jpeg_file()
    tensor = np.random.default_rng(2).standard_normal((1, 3, 224, 224), np.float32)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        net = torchvision.models.resnet18(weights=None).eval()
        models.export(directory / "models/net", net, config=CONFIG)
        server = Server(directory / "models", "cpu*1", directory / "run", ("--cpu_threads=1",))
        with server, braid.connect(server.address) as client:

            def encoded() -> tuple[float, float]:
                before = decode_seconds(server)
                seconds = mean_seconds(client, [file])
                return seconds, (decode_seconds(server) - before) / REQUESTS

            mean_seconds(client, [file])  # warms up
            mean_seconds(client, tensor)
            rounds = alternate(ROUNDS, encoded, lambda: mean_seconds(client, tensor))
    print(f"JPEG file of {len(file):,} bytes, resnet18, one CPU worker with one thread")
    heading("one request", ROUNDS)
    row("with the file, ms", [1e3 * request for (request, _), _ in rounds])
    row("decoding of the file, ms", [1e3 * decoding for (_, decoding), _ in rounds])
    row("with the tensor, ms", [1e3 * forward for _, forward in rounds])
    ratios = [request / (decoding + forward) for (request, decoding), forward in rounds]
    row("file / (decoding + tensor)", ratios, target=1.1, sign="≤")


if __name__ == "__main__":
    main()
