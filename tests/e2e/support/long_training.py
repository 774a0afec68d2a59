"""Many steps of models with any inputs, in plain PyTorch and by a server, to be compared."""

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
    """`steps` batches: those given, over and over."""
    for step in range(steps):
        yield batches[step % len(batches)]


def in_pytorch(
    module: nn.Module,
    batches: Iterator[Batch],
    optimizer: dict,
    loss: Callable[[nn.Module, int, Batch], Tensor],
) -> Run:
    """One step a batch in training mode. loss(module, step, batch): over the whole batch; steps
    are counted from 1."""
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
    """Parameters and buffers. Of a buffer that is not saved, too: a trace saves it."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def on_server(
    client: braid.Client, model: str, batches: Iterator[Batch], **options: object
) -> Run:
    """The same by a trainer of `client`. options: as create_trainer's."""
    with training.new_trainer(client, model, **options) as trainer:
        losses = [trainer.step(inputs, targets).loss for inputs, targets in batches]
        return Run(losses, trainer.state_dict())


@contextmanager
def clients_of(repository: Path, directory: Path) -> Iterator[Callable[[int], braid.Client]]:
    """Gives get(replicas): the client of a server with so many CPU replicas on `repository`, which
    is started when first asked for. directory: for what the servers write. In the end every server
    must have ended well."""
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
