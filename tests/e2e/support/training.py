"""Trainers on a server, through the braid client, for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import braid
import numpy as np
import torch
from e2e.support.oracle import Run, assert_equal_runs
from e2e.support.reference import Batch, Reference
from torch import Tensor

# For one step in float64, and for about twenty.
ONE_STEP = 1e-12
MANY_STEPS = 1e-9


@contextmanager
def new_trainer(client: braid.Client, model: str, **options) -> Iterator[braid.Trainer]:
    """Creates a trainer with a unique name, deletes it at the end. options: of create_trainer."""
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
    **options: object,
) -> Run:
    """Runs oracle.train's training on the server. options: of create_trainer."""
    with new_trainer(client, model, loss=loss, optimizer=optimizer, **options) as trainer:
        losses = [trainer.step({"x": x}, {"target": y}).loss for x, y in batches]
        return Run(losses, trainer.state_dict())


def on(replicas: int) -> list[dict]:
    """Returns the stages of a trainer on that many of a server's devices."""
    return [{"devices": [f"cpu:{i}" for i in range(replicas)]}]


def run(
    client: braid.Client, model: str, batches: Iterable[Batch], replicas: int = 3, **options
) -> Run:
    """Runs a step per batch of inputs and targets by name. options: of create_trainer."""
    with new_trainer(client, model, **{"stages": on(replicas), **options}) as trainer:
        losses = [trainer.step(*batch).loss for batch in batches]
        return Run(losses, trainer.state_dict())


def compare(
    client: braid.Client,
    model: str,
    batches: Sequence[Batch],
    optimizer: dict,
    loss: str | dict | list,
    replicas: int = 3,
    groups: Sequence[dict] = (),
    tolerance: float = MANY_STEPS,
    **options,
) -> None:
    """Compares the server's training with PyTorch's. options: must not change the result."""
    wanted = Reference(model, optimizer, loss, groups).train(batches)
    actual = run(
        client,
        model,
        batches,
        replicas,
        optimizer=optimizer,
        loss=loss,
        parameter_groups=list(groups) or None,
        **options,
    )
    assert_equal_runs(actual, wanted, tolerance)


def same_bits(one: Run, other: Run) -> bool:
    return (
        one.losses == other.losses
        and one.state.keys() == other.state.keys()
        and all(value.tobytes() == other.state[name].tobytes() for name, value in one.state.items())
    )


def rows(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Returns fixed, normally distributed rows in float64."""
    generator = torch.Generator().manual_seed(1000 * seed + count)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def classes(count: int, *shape: int, of: int = 5, seed: int = 0) -> Tensor:
    """Returns fixed class indices."""
    generator = torch.Generator().manual_seed(1000 * seed + count)
    return torch.randint(of, (count, *shape), generator=generator)


def batches(steps: int, count: int, width: int = 10, of: int = 5) -> list[Batch]:
    """Returns batches of "x" and class indices."""
    return [
        ({"x": rows(count, width, seed=s)}, {"target": classes(count, of=of, seed=s)})
        for s in range(steps)
    ]


def assert_state(trainer: braid.Trainer, reference: Reference, tolerance: float) -> None:
    """Checks that the trainer's parameters and buffers equal the reference's."""
    assert_equal_runs(Run([], trainer.state_dict()), Run([], reference.state()), tolerance)


def assert_unchanged(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> None:
    assert same_bits(Run([], before), Run([], after))
