"""Corrections of two errors in PyTorch's rules for tracing recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._decomp import decompositions
from torch.nn import functional


@contextmanager
def patched() -> Iterator[None]:
    """Replaces PyTorch's rules during a trace.

    All versions up to 2.15 omit the dropout between layers: they check `num_layers < i - 1`.
    Versions before 2.13 squeeze the batch dim of an LSTM's final states.
    """
    with (
        mock.patch.object(decompositions, "_rnn_helper", _layers),
        mock.patch.object(decompositions, "one_layer_lstm", _lstm_layer),
    ):
        yield


def _lstm_layer(
    input: torch.Tensor, hidden: Any, params: Any, has_biases: bool, reverse: bool = False
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Returns all outputs of one direction, and its final states."""
    input_weight, weight = params[:2]
    input_bias, bias = params[2:4] if has_biases else (None, None)
    projection = params[-1] if len(params) in (3, 5) else None
    state, cell = (each.unsqueeze(0) for each in hidden)
    steps = functional.linear(input, input_weight, input_bias)
    outputs = []
    for step in steps.flip(0) if reverse else steps:
        state, cell = decompositions.lstm_cell(
            step, state, cell, weight, bias, projection, chunk_dim=2
        )
        outputs.append(state)
    if reverse:
        outputs.reverse()
    return torch.cat(outputs, 0), (state.squeeze(0), cell.squeeze(0))


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
    """Runs the layers in sequence. Returns the last outputs, and final states by direction."""
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
