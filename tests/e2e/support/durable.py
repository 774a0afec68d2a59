"""Servers that are restarted, and a model whose training draws random numbers."""

from __future__ import annotations

import functools
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import braid
import numpy as np
import torch
from braid._channel import RetryPolicy
from e2e.support import models
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import Server
from safetensors.torch import load_file
from torch import Tensor, nn

FEATURES, CLASSES = 20, 5


class NormAndDropout(nn.Module):
    """Has weights and running statistics, and uses dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(32, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def make_noisy() -> nn.Module:
    torch.manual_seed(0)
    return NormAndDropout()


@functools.cache
def _noisy_pair() -> tempfile.TemporaryDirectory:
    """Exports the model once, because exporting takes seconds."""
    directory = tempfile.TemporaryDirectory(prefix="noisy-")
    models.export_pair(
        Path(directory.name) / "noisy",
        make_noisy(),
        (torch.zeros(1, FEATURES),),
        precisions=["float16"],
    )
    return directory


def export_noisy(directory: Path, format: str = "torchscript") -> None:
    """Adds NormAndDropout to a repository under the directory's name."""
    if format == "pair":
        shutil.copytree(Path(_noisy_pair().name) / "noisy", directory)
    else:
        models.export(directory, make_noisy(), inputs=[torch.zeros(1, FEATURES)])


def weights_in(directory: Path) -> dict[str, np.ndarray]:
    """Reads the weights of a version or a checkpoint with PyTorch."""
    is_checkpoint = (directory / "weights.safetensors").exists()
    model = "base" if is_checkpoint else "model"
    if (directory / f"{model}.pt").exists():
        state = torch.jit.load(directory / f"{model}.pt").state_dict()
    else:
        # In the module's order. A safetensors file does not keep it.
        found = load_file(directory / f"{model}.safetensors")
        state = {name: found.pop(name) for name in make_noisy().state_dict() if name in found}
        assert not found, f"{directory} has {list(found)}, too"
    if is_checkpoint:
        trained = load_file(directory / "weights.safetensors")
        state = {name: trained.get(name, value) for name, value in state.items()}
    return {name: value.numpy() for name, value in state.items()}


def batch(number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(inputs, targets) for NormAndDropout: always the same, of 13 to 28 rows."""
    generator = np.random.default_rng(number)
    rows = 13 + number % 16
    x = generator.standard_normal((rows, FEATURES), np.float32)
    return {"x": x}, {"target": np.abs(x[:, :CLASSES]).argmax(1)}


class DurableServer(Server):
    """A server that can be restarted on the same port. No outgoing connection gets that port."""

    def __init__(self, repository: Path, devices: str, directory: Path) -> None:
        super().__init__(repository, devices, directory, ("--cpu_threads=1",))
        self.data = directory / "data"
        self.replace_flag("--grpc_port", str(_stable_port()))

    def replace_flag(self, name: str, value: str | None) -> None:
        """Changes a flag for the next start. None removes the flag."""
        self._command = [part for part in self._command if not part.startswith(f"{name}=")]
        if value is not None:
            self._command.append(f"{name}={value}")

    def start(self) -> Server:
        self.ready_path.unlink(missing_ok=True)
        return super().start()

    def start_again(self, ending: signal.Signals = signal.SIGKILL) -> None:
        """Stops the server with the signal and starts it again."""
        if ending == signal.SIGKILL:
            self.kill()
        else:
            self.stop()
        self.start()

    def checkpoints(self, trainer: str) -> Path:
        """Returns the directory of a trainer's checkpoints."""
        return self.data / "trainers" / trainer / "checkpoints"


@contextmanager
def serving(
    directory: Path,
    with_data: bool = True,
    format: str = "torchscript",
    flags: Mapping[str, str] | None = None,
) -> Iterator[DurableServer]:
    """A new server of NormAndDropout, as "noisy", and of the models already in directory/models.

    flags: more flags, by name.

    Fails if the server is not running at the end, then kills it. Other tests check the exit.
    """
    export_noisy(directory / "models" / "noisy", format)
    server = DurableServer(directory / "models", "cpu*2", directory / "run")
    if not with_data:
        server.replace_flag("--data_dir", None)
    for name, value in (flags or {}).items():
        server.replace_flag(name, value)
    try:
        server.start()
        yield server
        assert server.process.poll() is None, server.log
    finally:
        server.kill()


def connect(server: Server) -> braid.Client:
    """Returns a client that reconnects soon after the server is back."""
    client = braid.connect(server.address, timeout=CALL_SECONDS)
    client._channel.retry = RetryPolicy(attempts=5, initial_backoff=0.02, max_backoff=0.1)
    return client


def restore(server: Server, trainer: str, checkpoint: str = "") -> Any:
    """Calls RestoreCheckpoint on a trainer without a handle. Returns the reply."""
    with channel(server.address) as connection:
        stub = Stub(connection, "braid.v1.TrainingService")
        request = message("braid.v1.RestoreCheckpointRequest")
        return stub.RestoreCheckpoint(request(trainer=trainer, checkpoint=checkpoint))


def assert_same_bits(actual: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(actual) == list(wanted)
    for name, value in wanted.items():
        assert actual[name].dtype == value.dtype, name
        assert actual[name].tobytes() == value.tobytes(), name


def _stable_port() -> int:
    """Returns a free port outside the range of ephemeral ports.

    A client that connects to a stopped server could get an ephemeral port as its own.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10000, first)
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
