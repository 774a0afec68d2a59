"""Batches that carry a number, so that one can see which of them a trainer stands on."""

from __future__ import annotations

import numpy as np

from braid import _protocol


def batch(number):
    """inputs and targets of batch `number`."""
    return {"x": np.full((2, 2), number, np.float32)}, {"target": np.zeros(2)}


def batches(server, name="fashion"):
    """The number of each batch that the trainer stands on. Its operations are 1 to n, each once."""
    history = server.trainers[name].history
    assert [sequence for sequence, _, _ in history] == list(range(1, len(history) + 1))
    requests = [_protocol.TRAINING[method].request.FromString(data) for _, method, data in history]
    inputs = [getattr(request, "inputs", ()) for request in requests]
    return [int(np.frombuffer(tensors[0].data, np.float32)[0]) for tensors in inputs if tensors]
