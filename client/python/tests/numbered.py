"""Numbered batches, which show the operations that a trainer has applied."""

from __future__ import annotations

import numpy as np

from braid import _protocol


def batch(number):
    """Returns inputs and targets of batch `number`."""
    return {"x": np.full((2, 2), number, np.float32)}, {"target": np.zeros(2)}


def batches(server, name="fashion"):
    """Returns the numbers of applied batches. Checks that operations 1 to n occur once."""
    history = server.trainers[name].history
    assert [sequence for sequence, _, _ in history] == list(range(1, len(history) + 1))
    requests = [_protocol.TRAINING[method].request.FromString(data) for _, method, data in history]
    inputs = [getattr(request, "inputs", ()) for request in requests]
    return [int(np.frombuffer(tensors[0].data, np.float32)[0]) for tensors in inputs if tensors]
