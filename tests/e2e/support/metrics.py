"""Parser of Prometheus' text format."""

from __future__ import annotations

import pathlib
import re
import urllib.request
from typing import NamedTuple

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs/reference/metrics.md"

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \d+)?"
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|$)')
_SUFFIXES = re.compile("_(bucket|sum|count)$")


class Scrape:
    """Parsed scrape. Raises ValueError for invalid Prometheus text and for a sample without a type
    or help."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset], float] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ", 3)
                self.types[name] = kind
            elif line.startswith("# HELP "):
                _, _, name, help_text = line.split(" ", 3)
                self.helps[name] = help_text
            elif line and not line.startswith("#"):
                self._add(line)

    def value(self, name: str, **labels: str) -> float:
        """Returns the sample with exactly these labels; 0 if there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def labels_of(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for sample, labels in self.samples if sample == name]

    def labels_of_family(self, family: str) -> list[dict[str, str]]:
        """Returns the labels of all samples of a family. A histogram's samples have other names."""
        return [
            dict(labels)
            for sample, labels in self.samples
            if sample == family or _SUFFIXES.sub("", sample) == family
        ]

    def _add(self, line: str) -> None:
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ValueError(f"no sample: {line!r}")
        name, labels = match["name"], match["labels"] or ""
        if _LABEL.sub("", labels):
            raise ValueError(f"labels: {line!r}")
        family = name if name in self.types else _SUFFIXES.sub("", name)
        if family not in self.types or family not in self.helps:
            raise ValueError(f"no type or help: {line!r}")
        self.samples[name, frozenset(_LABEL.findall(labels))] = float(match["value"])


class Metric(NamedTuple):
    type: str
    labels: set[str]
    help: str


def documented_metrics() -> dict[str, Metric]:
    """Returns the metrics of docs/reference/metrics.md by name."""
    metrics = {}
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| `"):
            name, kind, _, labels, help_text = (cell.strip() for cell in line.split("|")[1:-1])
            metrics[name.strip("`")] = Metric(kind, set(re.findall("`(.+?)`", labels)), help_text)
    assert metrics
    return metrics


def scrape(url: str) -> Scrape:
    with urllib.request.urlopen(url, timeout=30) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        return Scrape(reply.read().decode())
