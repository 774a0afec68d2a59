"""Trainers on a server, through the braid client, for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import braid
from e2e.oracle import Run
from torch import Tensor


@contextmanager
def new_trainer(client: braid.Client, model: str, **options) -> Iterator[braid.Trainer]:
    """A trainer with a name of its own, deleted in the end. options: as create_trainer's."""
    trainer = client.create_trainer(model, name=f"{model}-{uuid.uuid4().hex}", **options)
    try:
        yield trainer
    finally:
        trainer.delete()


def train(
    client: braid.Client,
    model: str,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: dict,
    loss: str,
) -> Run:
    """What oracle.train does, done by the server."""
    with new_trainer(client, model, loss=loss, optimizer=optimizer) as trainer:
        losses = [trainer.step({"x": x}, {"target": y}).loss for x, y in batches]
        return Run(losses, trainer.state_dict())
