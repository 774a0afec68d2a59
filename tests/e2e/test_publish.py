"""Publication: inference switches atomically to a trainer's weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models, oracle, publishing
from e2e.support.inference import assert_close, expected, infer
from e2e.support.server import Server
from torch import nn

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
SECONDS = 60


@pytest.fixture
def server(start_server: Callable[..., Server], format: str) -> Iterator[Server]:
    """One server for each test, because publications persist."""
    server = start_server("cpu*2", names=("chain", "mlp", "convnet"), format=format)
    yield server
    server.stop()


def train(trainer: braid.Trainer, steps: int = 5) -> None:
    for x, target in oracle.batches_of(trainer.model, "cross_entropy", 97, steps):
        trainer.step({"x": x}, {"target": target})


def module_of(trainer: braid.Trainer) -> nn.Module:
    """Returns the trainer's model in PyTorch with its present weights."""
    module = models.make(trainer.model)
    state = {name: torch.from_numpy(value) for name, value in trainer.state_dict().items()}
    module.load_state_dict(state)
    return module.eval()


@pytest.mark.parametrize("model", ["chain", "convnet"])
def test_published_weights_are_served(server: Server, model: str) -> None:
    """Including buffers: the convnet's evaluation uses the running statistics."""
    x = oracle.dataset(model, 300)[0].numpy()
    with braid.connect(server.address) as client:
        trainer = client.create_trainer(model, loss="cross_entropy", optimizer=SGD)
        train(trainer)
        (before,) = client.infer(model, {"x": x}).values()
        assert_close(before, expected(models.make(model), x))
        assert trainer.publish(model) == 2
        (after,) = client.infer(model, {"x": x}).values()
        (numbered,) = client.infer(model, {"x": x}, version=2).values()
        assert_close(after, expected(module_of(trainer), x))
        assert not np.allclose(before, after, atol=1e-3)
        assert_close(numbered, torch.from_numpy(after))


def test_version_numbers_increase(server: Server) -> None:
    with braid.connect(server.address) as client:
        trainer = client.create_trainer("chain", loss="cross_entropy", optimizer=SGD)
        for version in (2, 3, 4):
            train(trainer, steps=1)
            assert trainer.publish() == version
            assert max(client.model_metadata("chain").versions) == version
            statuses = {m.version: m.state for m in client.models() if m.name == "chain"}
            assert statuses[version] == "READY"
        with triton.InferenceServerClient(server.address) as stock:
            reply = infer(stock, "chain", {"x": np.zeros((1, 10), np.float32)})
            assert reply.get_response().model_version == "4"
            assert stock.is_model_ready("chain", "4")


def test_trainer_starts_from_the_published_version(server: Server) -> None:
    with braid.connect(server.address) as client:
        first = client.create_trainer("chain", loss="cross_entropy", optimizer=SGD)
        train(first)
        first.publish()
        published = first.state_dict()
        train(first)
        second = client.create_trainer("chain", name="second", loss="mse", optimizer=SGD)
        assert second.info().base_version == 2
        for name, value in second.state_dict().items():
            assert value.tobytes() == published[name].tobytes(), name


def test_trainer_continues_after_publication(server: Server) -> None:
    """Later steps do not change the version, and training is as if nothing had been published."""
    x = oracle.dataset("chain", 50)[0].numpy()
    with braid.connect(server.address) as client:
        publishing = client.create_trainer("chain", loss="cross_entropy", optimizer=SGD)
        silent = client.create_trainer(
            "chain", name="silent", loss="cross_entropy", optimizer=SGD
        )
        for trainer in (publishing, silent):
            train(trainer)
        publishing.publish()
        published = client.infer("chain", {"x": x})["output__0"]
        for trainer in (publishing, silent):
            train(trainer)
        assert_close(client.infer("chain", {"x": x})["output__0"], torch.from_numpy(published))
        for name, value in silent.state_dict().items():
            assert value.tobytes() == publishing.state_dict()[name].tobytes(), name


def test_many_publications_fail_no_request_and_mix_no_versions(tmp_path: Path) -> None:
    """`scripts/long/publish_versions.py` does the same for longer."""
    outcome = publishing.run(tmp_path, publishes=200)
    assert outcome.problems == []
    assert outcome.replies > 0


class Requester(threading.Thread):
    """Requests the same rows repeatedly until version `last` answers."""

    def __init__(self, address: str, x: np.ndarray, last: str) -> None:
        super().__init__(daemon=True)
        self._address, self._x, self._last = address, x, last
        self.started = threading.Event()
        self.replies: list[tuple[str, np.ndarray]] = []

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        with triton.InferenceServerClient(self._address) as client:
            while time.monotonic() < deadline:
                result = infer(client, "mlp", {"x": self._x})
                version = result.get_response().model_version
                self.replies.append((version, result.as_numpy("logits")))
                self.started.set()
                if version == self._last:
                    return


def test_each_reply_comes_from_one_version(server: Server) -> None:
    """Requests of one row, which are merged, and of 300 rows, which are split, during four
    publications."""
    x = oracle.dataset("mlp", 300)[0].numpy()
    modules = {"1": models.make("mlp")}
    requesters = [Requester(server.address, x[:rows], "5") for rows in (1, 1, 1, 300, 300)]
    for requester in requesters:
        requester.start()
    for requester in requesters:
        assert requester.started.wait(SECONDS)
    with braid.connect(server.address) as client:
        trainer = client.create_trainer("mlp", loss="cross_entropy", optimizer=SGD)
        for _ in range(4):
            train(trainer)
            modules[str(trainer.publish())] = module_of(trainer)
    outputs = [expected(module, x) for module in modules.values()]
    for before, after in zip(outputs, outputs[1:]):
        assert ((before - after).abs().amax(1) > 1e-3).all(), "the versions give the same outputs"
    for requester in requesters:
        requester.join(SECONDS)
        versions = [version for version, _ in requester.replies]
        assert versions[-1] == "5"
        assert versions == sorted(versions)
        for version, logits in requester.replies:
            wanted = expected(modules[version], x[: len(logits)])
            assert_close(logits, wanted, rtol=1e-4, atol=1e-5)
