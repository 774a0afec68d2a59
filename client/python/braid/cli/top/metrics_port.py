"""Reads figures that no call returns from the metrics port of a server: quantiles and memory."""

from __future__ import annotations

import http.client
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_INFERENCE_METHODS = ("ModelInfer", "ModelStreamInfer")
_GPU_MEMORY = "braid_gpu_memory_{}_bytes"


@dataclass
class Metrics:
    """Figures of the metrics port at one time.

    latencies: by model, cumulative counts of inference requests by the upper bound of their
        duration in seconds, since the server started.
    queue_rows: by model, rows that wait.
    memory: by device, used and total bytes; total None: unknown. A GPU's counts all processes, a
        CPU's the models and trainers.
    losses: by trainer, the latest loss.
    """

    latencies: dict[str, dict[float, float]] = field(default_factory=dict)
    queue_rows: dict[str, int] = field(default_factory=dict)
    memory: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)


def url(address: str) -> str:
    """Returns the URL of the metrics at HOST:PORT, or `address` if it is a URL."""
    return address if "://" in address else f"http://{address}/metrics"


def read(address: str, timeout: float) -> Metrics:
    """Reads the metrics port. Raises OSError with the address and the reason."""
    try:
        with urllib.request.urlopen(url(address), timeout=timeout) as reply:
            text = reply.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        raise OSError(f"{url(address)}: HTTP status {error.code} (expected 200)") from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise OSError(f"{url(address)}: {reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise OSError(f"{url(address)}: {error or type(error).__name__}") from None
    return parse(text)


def parse(text: str) -> Metrics:
    """Parses Prometheus's text format. Ignores other metrics, and lines that it cannot read."""
    metrics = Metrics()
    uuids: dict[str, str] = {}
    gpus: dict[str, dict[str, float]] = {"used": {}, "total": {}}
    sums: dict[str, float] = {}
    for name, labels, value in _series(text):
        if name == "braid_request_duration_seconds_bucket":
            if labels.get("method") not in _INFERENCE_METHODS:
                continue
            counts = metrics.latencies.setdefault(labels.get("model", ""), {})
            bound = float(labels.get("le", "+Inf"))
            counts[bound] = counts.get(bound, 0.0) + value
        elif name == "braid_queue_rows":
            metrics.queue_rows[labels.get("model", "")] = int(value)
        elif name == "braid_training_loss":
            metrics.losses[labels.get("trainer", "")] = value
        elif name == "braid_device_info":
            uuids[labels.get("device", "")] = labels.get("uuid", "")
        elif name == "braid_device_memory_bytes":
            if labels.get("owner") in ("models", "trainers"):
                device = labels.get("device", "")
                sums[device] = sums.get(device, 0.0) + value
        elif name == _GPU_MEMORY.format("used"):
            gpus["used"][labels.get("uuid", "")] = value
        elif name == _GPU_MEMORY.format("total"):
            gpus["total"][labels.get("uuid", "")] = value
    for device, used in sums.items():
        uuid = uuids.get(device, "")
        if uuid in gpus["used"]:
            metrics.memory[device] = (gpus["used"][uuid], gpus["total"].get(uuid))
        else:
            metrics.memory[device] = (used, None)
    return metrics


def quantile(
    share: float, before: Mapping[float, float], now: Mapping[float, float]
) -> float | None:
    """Returns a quantile in seconds of the requests between two histograms. None: no requests.

    Interpolates within a bucket, as Prometheus's histogram_quantile does. Beyond the last bound,
    returns that bound.
    """
    counts = [(bound, max(now[bound] - before.get(bound, 0.0), 0.0)) for bound in sorted(now)]
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    rank = share * total
    low, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if math.isinf(bound):
                break
            inside = count - below
            return low + (bound - low) * ((rank - below) / inside if inside > 0 else 1.0)
        low, below = bound, count
    return low


def _series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        match = _LINE.match(line) if line.startswith("braid_") else None
        if match:
            try:
                value = float(match[3])
            except ValueError:
                continue
            labels = {key: _unescaped(text) for key, text in _LABEL.findall(match[2] or "")}
            yield match[1], labels, value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), text)
