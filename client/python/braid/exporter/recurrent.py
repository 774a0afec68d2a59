"""Recurrent layers as they are traced, with the dropout between layers that PyTorch forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._decomp import decompositions


@contextmanager
def with_dropout() -> Iterator[None]:
    """torch 2.11 asks `num_layers < i - 1` before dropout, which never holds for layer i."""
    with mock.patch.object(decompositions, "_rnn_helper", _layers):
        yield


def _layers(
    input: torch.Tensor,
    hidden: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer: Callable[..., Any],
) -> tuple[torch.Tensor, list[Any]]:
    """The layers one after the other: what the last gives, and each direction's final state."""
    states = []
    output = input.transpose(0, 1) if batch_first else input
    for index in range(num_layers):
        if index > 0 and train and dropout > 0:
            output = torch.dropout(output, dropout, train=True)
        weights, state, back_weights, back_state = decompositions.params_hiddens(
            params, hidden, index, bidirectional
        )
        ahead, final = layer(output, state, weights, has_biases)
        states.append(final)
        if bidirectional:
            back, final = layer(output, back_state, back_weights, has_biases, reverse=True)
            states.append(final)
            ahead = torch.cat([ahead, back], ahead.dim() - 1)
        output = ahead
    return output.transpose(0, 1) if batch_first else output, states
