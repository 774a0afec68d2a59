"""Tracing of recurrent layers as one operator per layer and direction.

PyTorch's rules unroll them over their time steps. A packed sequence is traced as a padded one, with
the lengths of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import _VF, nn
from torch._decomp import decompositions
from torch.nn import functional

import braid.exporter.trace.recurrent_operators  # noqa: F401 (defines torch.ops.braid)
from braid._export import ExportError

_aten = torch.ops.aten
# LibTorch's operators for all layers of a module. They have no gradient in a trace, and none of
# autocast's casts.
WHOLE = {_aten.gru.input, _aten.lstm.input, _aten.rnn_relu.input, _aten.rnn_tanh.input}

_Parameters = list[torch.Tensor]


@contextmanager
def as_operators() -> Iterator[None]:
    """Replaces PyTorch's rules for recurrent layers and packed sequences during a trace.

    The rules of all versions up to 2.15 also omit the dropout between layers: they check
    `num_layers < i - 1`.
    """
    rules = {
        "_rnn_helper": _run_layers,
        "gru_cell": _gru,
        "gru_cell_data": _gru,
        "one_layer_lstm_data": _lstm_layer,
        "one_layer_rnn": _layer,
        "one_layer_rnn_data": _layer,
        "rnn_cell": _simple,
        "rnn_cell_data": _simple,
        "select_one_layer_lstm_function": lambda *_: _lstm_layer,
    }
    functions = {
        "_pack_padded_sequence": _pack,
        "_pad_packed_sequence": _pad,
        "gru": _taking_packed(_VF.gru, decompositions.gru_impl_data),
        "lstm": _taking_packed(_VF.lstm, decompositions.lstm_data_impl),
        "rnn_relu": _taking_packed(_VF.rnn_relu, decompositions.rnn_relu_data),
        "rnn_tanh": _taking_packed(_VF.rnn_tanh, decompositions.rnn_tanh_data),
    }
    with ExitStack() as stack:
        for name, rule in rules.items():
            stack.enter_context(mock.patch.object(decompositions, name, rule))
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(_VF, name, function))
        for kind in (nn.RNNBase, nn.LSTM):
            check = _unless_packed(kind.check_forward_args)
            stack.enter_context(mock.patch.object(kind, "check_forward_args", check))
        yield


class _Longest:
    """Length of a packed sequence's longest row, which a trace does not know."""

    def __gt__(self, total_length: Any) -> bool:
        return False


@dataclass(frozen=True)
class _Packed:
    """Stands for the batch sizes of a packed sequence.

    The sequence's data are those of the padded one, whose first dims, [steps, rows], are flattened.

    lengths: int64 [rows].
    """

    lengths: torch.Tensor
    steps: int
    rows: int
    device: torch.device = torch.device("cpu")

    def __getitem__(self, step: int) -> int:
        if step != 0:
            raise ExportError(
                f"forward() uses batch_sizes[{step}] of a packed sequence (expected only "
                f"batch_sizes[0], the number of rows)"
            )
        return self.rows

    def size(self, dim: int) -> _Longest:
        return _Longest()

    def valid(self, device: torch.device) -> torch.Tensor:
        """Returns which steps each row has: bool [steps, rows]."""
        times = torch.arange(self.steps, device=device)
        return times.unsqueeze(1) < self.lengths.to(device)

    def unflatten(self, data: torch.Tensor) -> torch.Tensor:
        return data.reshape(self.steps, self.rows, *data.shape[1:])


def _pack(
    input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, _Packed]:
    padded = input.transpose(0, 1) if batch_first else input
    return padded.flatten(0, 1), _Packed(lengths, padded.shape[0], padded.shape[1])


def _pad(
    data: torch.Tensor, packed: _Packed, batch_first: bool, value: float, total_length: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(total_length, _Longest):
        raise ExportError(
            "pad_packed_sequence() without total_length returns as many steps as the longest row "
            "of the batch has (expected a length that does not depend on the batch, for example "
            "total_length=x.shape[1])"
        )
    padded = packed.unflatten(data)
    valid = packed.valid(data.device)
    padded = torch.where(valid.view(*valid.shape, *[1] * (data.dim() - 1)), padded, value)
    if total_length != packed.steps:
        after = [0, 0] * (padded.dim() - 1) + [0, total_length - packed.steps]
        padded = functional.pad(padded, after, value=value)
    return padded.transpose(0, 1) if batch_first else padded, packed.lengths


def _unless_packed(check: Callable[..., None]) -> Callable[..., None]:
    def checked(layer: nn.RNNBase, input: Any, hidden: Any, batch_sizes: Any) -> None:
        # The eager runs have checked packed sequences.
        if not isinstance(batch_sizes, _Packed):
            check(layer, input, hidden, batch_sizes)

    return checked


def _taking_packed(function: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, which runs `rule` for packed sequences of the trace."""

    def run(input: torch.Tensor, second: Any, *args: Any) -> tuple[torch.Tensor, ...]:
        if not isinstance(second, _Packed):
            return function(input, second, *args)
        output, *states = rule(second.unflatten(input), second, *args)
        return output.flatten(0, 1), *states

    return run


def _run_layers(
    input: torch.Tensor,
    hidden: Any,
    params: list[_Parameters],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer: Callable[..., Any],
) -> tuple[torch.Tensor, list[Any]]:
    """Runs the layers in sequence. Returns the last outputs, and final states by direction."""
    packed = layer.keywords.get("batch_sizes") if isinstance(layer, partial) else None
    states = []
    output = input.transpose(0, 1) if batch_first else input
    for index in range(num_layers):
        if index > 0 and train and dropout > 0:
            output = _drop(output, dropout, packed)
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


def _drop(output: torch.Tensor, probability: float, packed: _Packed | None) -> torch.Tensor:
    if packed is None:
        return torch.dropout(output, probability, train=True)
    # Eager mode draws numbers for the steps that rows have.
    factors = torch.dropout(torch.ones_like(output).flatten(0, 1), probability, train=True)
    place = packed.valid(output.device).flatten().cumsum(0).sub(1).clamp(min=0)
    return output * packed.unflatten(factors.index_select(0, place))


def _lstm_layer(
    input: torch.Tensor,
    hidden: tuple[torch.Tensor, torch.Tensor],
    params: _Parameters,
    has_biases: bool,
    batch_sizes: _Packed | None = None,
    reverse: bool = False,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Returns all outputs of one direction, and its final states."""
    input_bias, bias = params[2:4] if has_biases else (None, None)
    projection = params[-1] if len(params) in (3, 5) else None
    lengths = None if batch_sizes is None else batch_sizes.lengths
    state, cell = hidden
    if projection is not None:
        state = _cast(state)
    elif state.is_cuda or _runs_onednn(lengths):
        state, cell = _cast(state), _cast(cell)
    weights = map(_cast, (*params[:2], input_bias, bias, projection))
    output, last_hidden, last_cell, _, _ = torch.ops.braid.lstm(
        _cast(input), state, cell, *weights, lengths, reverse
    )
    return output, (last_hidden, last_cell)


def _layer(
    input: torch.Tensor,
    hidden: torch.Tensor,
    params: _Parameters,
    has_biases: bool,
    hidden_fn: Callable[..., Any],
    batch_sizes: _Packed | None = None,
    reverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all outputs of one direction of a GRU or simple layer, and its final state."""
    lengths = None if batch_sizes is None else batch_sizes.lengths
    biases = params[2:4] if has_biases else (None, None)
    output, last, *_ = hidden_fn(input, hidden, *params[:2], *biases, lengths, reverse)
    return output, last


def _gru(
    input: torch.Tensor,
    hidden: torch.Tensor,
    input_weight: torch.Tensor,
    weight: torch.Tensor,
    input_bias: torch.Tensor | None,
    bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    steps = functional.linear(input, input_weight, input_bias)
    state = _cast(hidden) if hidden.is_cuda else hidden
    return torch.ops.braid.gru(steps, state, _cast(weight), _cast(bias), lengths, reverse)


def _simple(nonlinearity: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        input: torch.Tensor,
        hidden: torch.Tensor,
        input_weight: torch.Tensor,
        weight: torch.Tensor,
        input_bias: torch.Tensor | None,
        bias: torch.Tensor | None,
        lengths: torch.Tensor | None,
        reverse: bool,
    ) -> tuple[torch.Tensor, ...]:
        both = input_bias if bias is None else input_bias + bias
        steps = functional.linear(input, input_weight, both)
        # The state is an operand of a product only.
        return torch.ops.braid.rnn(
            steps, _cast(hidden), _cast(weight), lengths, nonlinearity is torch.relu, reverse
        )

    return run


def _runs_onednn(lengths: torch.Tensor | None) -> bool:
    """Returns True if oneDNN runs an LSTM on the CPU, which casts states as autocast does."""
    return lengths is None and torch._C._get_mkldnn_enabled()


def _cast(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Casts an operand of a product to the dtype of autocast."""
    if tensor is None or tensor.dtype == torch.float64:
        return tensor
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))
