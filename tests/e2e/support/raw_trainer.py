"""A trainer that is controlled by raw messages, so that tests can send invalid ones."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from e2e.support.protocol import Stub, channel, message, tensor

SERVICE = "braid.v1.TrainingService"
_numbers = itertools.count()


class RawTrainer:
    """Counts its sequence numbers and chooses its name.

    loss, optimizer, options: dicts of the protocol's messages; None for no loss.
    """

    def __init__(
        self,
        address: str,
        model: str,
        loss: dict | None,
        optimizer: dict,
        options: dict | None = None,
    ) -> None:
        self.stub = Stub(channel(address), SERVICE)
        self.name = f"raw-{next(_numbers)}"
        self.sequence = 0
        request = message("braid.v1.CreateTrainerRequest")(
            model=model,
            name=self.name,
            losses=[] if loss is None else [loss],
            optimizer=optimizer,
            options=options or {},
        )
        self.stub.CreateTrainer(request)

    def request(
        self,
        method: str,
        inputs: dict[str, np.ndarray] | None = None,
        targets: dict[str, np.ndarray] | None = None,
        **fields: Any,
    ) -> Any:
        """Returns a valid request of operation `method` with the next sequence number."""
        tensors = {
            field: [tensor(name, array) for name, array in arrays.items()]
            for field, arrays in (("inputs", inputs), ("targets", targets))
            if arrays is not None
        }
        return message(f"braid.v1.{method}Request")(
            trainer=self.name, sequence=self.sequence + 1, **tensors, **fields
        )

    def send(self, method: str, request: Any) -> Any:
        return getattr(self.stub, method)(request)

    def apply(self, method: str, *arguments: Any, **fields: Any) -> Any:
        """Sends a valid request and increments the sequence number. Returns the reply."""
        reply = self.send(method, self.request(method, *arguments, **fields))
        self.sequence += 1
        assert reply.status.applied_sequence == self.sequence
        return reply

    def info(self) -> Any:
        """Returns the trainer's braid.v1.Trainer message."""
        return self.stub.GetTrainer(message("braid.v1.GetTrainerRequest")(name=self.name)).trainer

    def state(self) -> dict[str, bytes]:
        """Returns the bytes of every parameter and buffer."""
        request = message("braid.v1.GetStateDictRequest")(trainer=self.name)
        state: dict[str, bytes] = {}
        for piece in self.stub.GetStateDict(request):
            assert len(state.setdefault(piece.name, b"")) == piece.offset
            state[piece.name] += piece.data
        return state

    def snapshot(self) -> tuple[dict[str, bytes], bytes]:
        """Returns all visible state of the trainer, for comparison."""
        return self.state(), self.info().SerializeToString(deterministic=True)

    def delete(self) -> None:
        self.stub.DeleteTrainer(message("braid.v1.DeleteTrainerRequest")(name=self.name))
