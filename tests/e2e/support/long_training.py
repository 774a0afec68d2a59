"""Long training runs with arbitrary inputs, in plain PyTorch and on a server, for comparison."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import braid
import numpy as np
from e2e.support import oracle, training
from e2e.support.oracle import Run
from e2e.support.server import Server
from torch import Tensor, nn

# Inputs and targets, by name.
Batch = tuple[dict[str, Tensor], dict[str, Tensor]]


def cycle(batches: Sequence[Batch], steps: int) -> Iterator[Batch]:
    """Yields `steps` batches, cycling through `batches`."""
    for step in range(steps):
        yield batches[step % len(batches)]


def in_pytorch(
    module: nn.Module,
    batches: Iterator[Batch],
    optimizer: dict,
    loss: Callable[[nn.Module, int, Batch], Tensor],
) -> Run:
    """Runs one step per batch in training mode. loss(module, step, batch) is over the whole batch.
    Steps are counted from 1."""
    module.train()
    stepper = oracle.make_optimizer(module, optimizer)
    losses = []
    for step, batch in enumerate(batches, start=1):
        value = loss(module, step, batch)
        stepper.zero_grad()
        value.backward()
        stepper.step()
        losses.append(value.item())
    return Run(losses, state_of(module))


def state_of(module: nn.Module) -> dict[str, np.ndarray]:
    """Returns parameters, tied ones under each name, and buffers, including those that are not
    persistent: a trace saves them."""
    parameters = module.named_parameters(remove_duplicate=False)
    tensors = {**dict(parameters), **dict(module.named_buffers())}
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def on_server(
    client: braid.Client, model: str, batches: Iterator[Batch], **options: object
) -> Run:
    """Runs the same training with a trainer of `client`. options: of create_trainer."""
    with training.new_trainer(client, model, **options) as trainer:
        losses = [trainer.step(inputs, targets).loss for inputs, targets in batches]
        return Run(losses, trainer.state_dict())


@contextmanager
def clients_of(repository: Path, directory: Path) -> Iterator[Callable[[int], braid.Client]]:
    """Yields get(replicas): the client of a server on `repository` with that many CPU replicas.
    get() starts the server at its first call. directory: for files that the servers write.
    Every server must exit with code 0."""
    servers: list[Server] = []
    clients: list[braid.Client] = []

    @functools.cache
    def get(replicas: int) -> braid.Client:
        run = directory / f"cpu{replicas}"
        server = Server(repository, f"cpu*{replicas}", run, ("--cpu_threads=1",))
        servers.append(server)
        clients.append(braid.connect(server.start().address))
        return clients[-1]

    try:
        yield get
        for client in clients:
            client.close()
        for server in servers:
            server.stop()
    finally:
        for server in servers:
            server.kill()
