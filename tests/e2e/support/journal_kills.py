"""Clients that never resend, and train while the server is killed: no answered operation may be lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import braid
import numpy as np
from e2e.support.durable import DurableServer, batch
from e2e.support.polling import wait_until

PUBLISH_EVERY = 101


def step(trainer: braid.Trainer, number: int) -> None:
    trainer.step(*batch(number), timeout=60)


def accumulate(trainer: braid.Trainer, number: int) -> None:
    """Two batches, then an update; a version now and then."""
    if number % PUBLISH_EVERY == PUBLISH_EVERY - 1:
        trainer.publish(timeout=60)
    elif number % 3 == 2:
        trainer.optim_step(timeout=60)
    else:
        trainer.forward_backward(*batch(number), timeout=60)


@dataclass(frozen=True)
class Recipe:
    apply: Callable[[braid.Trainer, int], None]
    options: Mapping[str, Any]


RECIPES = {
    "adamw": Recipe(step, {"optimizer": "AdamW", "clip_grad_norm": 1.0}),
    "momentum": Recipe(
        step,
        {
            "optimizer": {"name": "SGD", "lr": 0.05, "momentum": 0.9},
            "schedule": {"name": "StepLR", "step_size": 50},
            "checkpoint_every": 37,
        },
    ),
    "accumulated": Recipe(accumulate, {"optimizer": "Adam"}),
}


def create(client: braid.Client, recipe: str, name: str) -> braid.Trainer:
    options = RECIPES[recipe].options
    return client.create_trainer("noisy", version=1, name=name, loss="cross_entropy", **options)


@dataclass
class Client:
    """Applies the operations of a recipe, as a new client after each error."""

    address: str
    recipe: str
    applied: int = 0  # operations with a reply
    problems: list[str] = field(default_factory=list)
    stop: bool = False

    def run(self) -> None:
        while not self.stop and not self.problems:
            try:
                with braid.connect(self.address) as client:
                    self._train(client.trainer(self.recipe, timeout=60))
            except (braid.Unavailable, braid.Cancelled, braid.DeadlineExceeded):
                time.sleep(0.02)  # The server is not back yet.
            except Exception as problem:
                self.problems.append(f"{self.recipe} at {self.applied}: {problem!r}")

    def _train(self, trainer: braid.Trainer) -> None:
        reached = trainer.info().applied_sequence
        if not self.applied <= reached <= self.applied + 1:
            self.problems.append(f"{self.recipe}: {reached} after a reply to {self.applied}")
        self.applied = reached
        while not self.stop:
            RECIPES[self.recipe].apply(trainer, self.applied)
            self.applied += 1


def kill_while_training(
    server: DurableServer,
    kills: int,
    generator: random.Random,
    progress: Callable[[int, int], None] = lambda count, operations: None,
) -> list[str]:
    """Kills the server `kills` times while a client trains for each recipe. Returns the problems: lost or
    repeated operations, and weights that differ from those of trainers without a kill."""
    with braid.connect(server.address) as client:
        for recipe in RECIPES:
            create(client, recipe, recipe)
    clients = [Client(server.address, recipe) for recipe in RECIPES]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for count in range(kills):
        time.sleep(generator.uniform(0.02, 0.3))
        server.start_again()
        progress(count + 1, sum(client.applied for client in clients))
        if any(client.problems for client in clients):
            break
    # After the last kill, each client compares where its trainer is with its replies.
    reached = {client.recipe: client.applied for client in clients}
    wait_until(
        lambda: all(client.problems or client.applied > reached[client.recipe] for client in clients)
    )
    for client in clients:
        client.stop = True
    for thread in threads:
        thread.join()
    problems = [problem for client in clients for problem in client.problems]
    return problems or [line for client in clients for line in differences(server, client)]


def differences(server: DurableServer, client: Client) -> list[str]:
    with braid.connect(server.address) as connection:
        killed = connection.trainer(client.recipe)
        count = killed.info().applied_sequence
        undisturbed = create(connection, client.recipe, f"{client.recipe}-undisturbed")
        for number in range(count):
            RECIPES[client.recipe].apply(undisturbed, number)
        weights, wanted = killed.state_dict(), undisturbed.state_dict()
    return [
        f"{client.recipe}: {name} differs after {count} operations"
        for name in wanted
        if not np.array_equal(weights[name], wanted[name])
    ]
