"""Metrics of a device slot join with those of its GPU and report LibTorch's allocator memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from e2e.support.metrics import Scrape, scrape
from e2e.support.server import Server

from gpu.target import gpu_only

pytestmark = gpu_only


@pytest.fixture(scope="module")
def scraped(start_server: Callable[..., Server], devices: str) -> Scrape:
    return scrape(start_server(devices, names=("mlp",)).metrics_url)


def test_device_slot_has_the_labels_of_its_gpu(scraped: Scrape) -> None:
    gpus = [(labels["gpu"], labels["uuid"]) for labels in scraped.labels_of("braid_gpu_info")]
    slots = scraped.labels_of("braid_device_info")
    assert slots
    for slot in slots:
        assert slot["kind"] == "cuda"
        assert slot["uuid"] == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        assert (slot["gpu"], slot["uuid"]) in gpus


def test_metrics_exist_before_a_model_is_loaded(
    start_server: Callable[..., Server], devices: str
) -> None:
    server = start_server(devices, names=("mlp",), flags=("--model_control_mode=explicit",))
    owners = {
        labels["owner"]
        for labels in scrape(server.metrics_url).labels_of("braid_device_memory_bytes")
    }
    assert {"allocator", "cache"} <= owners


def test_allocator_memory_is_counted_once_per_gpu(scraped: Scrape) -> None:
    slots = [labels["device"] for labels in scraped.labels_of("braid_device_info")]
    memory = scraped.labels_of("braid_device_memory_bytes")
    for owner in ("models", "trainers"):
        assert [labels["device"] for labels in memory if labels["owner"] == owner] == slots
    for owner in ("allocator", "cache"):
        assert [labels["device"] for labels in memory if labels["owner"] == owner] == slots[:1]
    first = {"device": slots[0]}
    models = [
        scraped.value("braid_device_memory_bytes", device=slot, owner="models") for slot in slots
    ]
    allocated = scraped.value("braid_device_memory_bytes", owner="allocator", **first)
    assert 0 < sum(models) <= allocated
