"""Operators for one direction of a recurrent layer over all time steps, and their gradients.

A trace calls them where it would need an operator per time step and gate. The server has its own
kernels, with the same schemas and results; server/kernels/recurrent_operators.h documents them. The
kernels here run in the checks of an export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

NAMESPACE = "braid"

_Tensor = torch.Tensor
_library = torch.library.Library(NAMESPACE, "DEF")


def _define(schema: str, kernel: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    _library.define(schema)
    name = schema.partition("(")[0]
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=_library)


@dataclass(frozen=True)
class _Times:
    """Order in which time steps run, and the steps that rows have: bool [T, B, 1], or None."""

    count: int
    reverse: bool
    valid: _Tensor | None

    @classmethod
    def of(cls, sequence: _Tensor, lengths: _Tensor | None, reverse: bool) -> _Times:
        count, valid = sequence.shape[0], None
        if count == 0:
            raise ValueError("a sequence without time steps (expected at least 1)")
        if lengths is not None:
            times = torch.arange(count, device=sequence.device)
            valid = times.view(-1, 1, 1) < lengths.to(sequence.device).view(1, -1, 1)
        return cls(count, reverse, valid)

    def forward(self) -> Iterator[int]:
        return iter(range(self.count)[:: -1 if self.reverse else 1])

    def backward(self) -> Iterator[int]:
        return iter(range(self.count)[:: 1 if self.reverse else -1])

    def keep(self, time: int, before: _Tensor, state: _Tensor) -> _Tensor:
        """Returns `state`, with the state `before` in rows that lack the step."""
        return state if self.valid is None else torch.where(self.valid[time], state, before)


def states_before(states: _Tensor, initial: _Tensor, reverse: bool) -> _Tensor:
    """Returns the state before each step, from the states after them."""
    first = initial.unsqueeze(0).to(states.dtype)
    return torch.cat([states[1:], first] if reverse else [first, states[:-1]])


def _computed(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _state_dtype(steps: _Tensor, initial: _Tensor) -> torch.dtype:
    return torch.promote_types(steps.dtype, initial.dtype)


def _product(left: _Tensor, matrix: _Tensor) -> _Tensor:
    return (left.to(matrix.dtype) @ matrix).to(left.dtype)


def _weight_gradient(of_steps: _Tensor, states: _Tensor) -> _Tensor:
    return of_steps.flatten(0, 1).t() @ states.flatten(0, 1).to(of_steps.dtype)


def _initial(gradient: _Tensor | None, state: _Tensor, dtype: torch.dtype) -> _Tensor:
    return torch.zeros_like(state, dtype=dtype) if gradient is None else gradient.to(dtype)


def _lstm(
    input: _Tensor,
    hidden: _Tensor,
    cell: _Tensor,
    input_weight: _Tensor,
    weight: _Tensor,
    input_bias: _Tensor | None,
    bias: _Tensor | None,
    projection: _Tensor | None,
    lengths: _Tensor | None,
    reverse: bool,
) -> tuple[_Tensor, ...]:
    times = _Times.of(input, lengths, reverse)
    steps = functional.linear(input, input_weight, input_bias)
    steps = steps if bias is None else steps + bias
    dtype = _computed(steps.dtype)
    gates = steps.to(dtype, copy=True)
    output, cells = [steps] * times.count, [steps] * times.count
    h, c = hidden.to(dtype), cell.to(dtype)
    for time in times.forward():
        into, forget, new, out = gates[time].add_(_product(h, weight.t())).chunk(4, 1)
        after = forget.sigmoid_() * c + into.sigmoid_() * new.tanh_()
        state = out.sigmoid_() * after.tanh()
        if projection is not None:
            state = _product(state, projection.t())
        h, c = times.keep(time, h, state), times.keep(time, c, after)
        output[time], cells[time] = h, c
    state_dtype = _state_dtype(steps, hidden)
    return (
        torch.stack(output).to(state_dtype),
        h.to(state_dtype, copy=True),
        c.to(_state_dtype(steps, cell), copy=True),
        gates,
        torch.stack(cells),
    )


def _lstm_shapes(
    input: _Tensor,
    hidden: _Tensor,
    cell: _Tensor,
    input_weight: _Tensor,
    weight: _Tensor,
    *_: Any,
) -> tuple[_Tensor, ...]:
    count, rows, _ = input.shape
    state_dtype, dtype = _state_dtype(input, hidden), _computed(input.dtype)
    return (
        input.new_empty((count, rows, weight.shape[1]), dtype=state_dtype),
        input.new_empty((rows, weight.shape[1]), dtype=state_dtype),
        input.new_empty((rows, cell.shape[1]), dtype=_state_dtype(input, cell)),
        input.new_empty((count, rows, weight.shape[0]), dtype=dtype),
        input.new_empty((count, rows, cell.shape[1]), dtype=dtype),
    )


def _lstm_backward(
    grad_output: _Tensor | None,
    grad_last_hidden: _Tensor | None,
    grad_last_cell: _Tensor | None,
    input: _Tensor,
    hidden: _Tensor,
    cell: _Tensor,
    input_weight: _Tensor,
    weight: _Tensor,
    input_bias: _Tensor | None,
    bias: _Tensor | None,
    projection: _Tensor | None,
    lengths: _Tensor | None,
    reverse: bool,
    output: _Tensor,
    last_hidden: _Tensor,
    last_cell: _Tensor,
    gates: _Tensor,
    cells: _Tensor,
) -> tuple[_Tensor, ...]:
    times = _Times.of(gates, lengths, reverse)
    dtype = gates.dtype
    into, forget, new, out = gates.chunk(4, 2)
    squashed = cells.tanh()
    # Derivatives of the gates by the cell state, for the output gate by the hidden state.
    factors = torch.stack(
        [
            new * into * (1 - into),
            states_before(cells, cell, reverse) * forget * (1 - forget),
            into * (1 - new * new),
            squashed * out * (1 - out),
        ],
        2,
    )
    of_cell = out * (1 - squashed * squashed)
    if times.valid is not None:
        factors = factors * times.valid.unsqueeze(3)
        of_cell = of_cell * times.valid
        forget = forget.masked_fill(~times.valid, 1)
    of_gates = torch.empty_like(factors)
    of_states = gates.new_empty(output.shape)
    h, c = _initial(grad_last_hidden, hidden, dtype), _initial(grad_last_cell, cell, dtype)
    for time in times.backward():
        if grad_output is not None:
            h = h + grad_output[time]
        of_states[time] = h
        own = h if projection is None else _product(h, projection)
        c = c + own * of_cell[time]
        sources = torch.stack([c, c, c, own], 1)
        torch.mul(factors[time], sources, out=of_gates[time])
        h = times.keep(time, h, _product(of_gates[time].flatten(1), weight))
        c = c * forget[time]
    of_gates = of_gates.flatten(2).to(weight.dtype)
    of_steps = of_gates.flatten(0, 1)
    of_projection = weight.new_empty(0)
    if projection is not None:
        states = out * squashed
        states = states if times.valid is None else states * times.valid
        of_projection = _weight_gradient(of_states.to(weight.dtype), states)
    return (
        (of_steps @ input_weight).view(input.shape),
        h.to(hidden.dtype),
        c.to(cell.dtype),
        of_steps.t() @ input.flatten(0, 1),
        _weight_gradient(of_gates, states_before(output, hidden, reverse)),
        of_steps.sum(0),
        of_projection,
    )


def _lstm_backward_shapes(
    grad_output: _Tensor | None,
    grad_last_hidden: _Tensor | None,
    grad_last_cell: _Tensor | None,
    input: _Tensor,
    hidden: _Tensor,
    cell: _Tensor,
    input_weight: _Tensor,
    weight: _Tensor,
    input_bias: _Tensor | None,
    bias: _Tensor | None,
    projection: _Tensor | None,
    *_: Any,
) -> tuple[_Tensor, ...]:
    return (
        input.new_empty(input.shape),
        hidden.new_empty(hidden.shape),
        cell.new_empty(cell.shape),
        input_weight.new_empty(input_weight.shape),
        weight.new_empty(weight.shape),
        weight.new_empty(weight.shape[:1]),
        weight.new_empty(0 if projection is None else projection.shape),
    )


def _gru(
    steps: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None,
    lengths: _Tensor | None,
    reverse: bool,
) -> tuple[_Tensor, ...]:
    times = _Times.of(steps, lengths, reverse)
    dtype, units = _computed(steps.dtype), weight.shape[1]
    output, gates = ([steps] * times.count for _ in range(2))
    h = hidden.to(dtype)
    for time in times.forward():
        products = _product(h, weight.t())
        if bias is not None:
            products = products + bias
        both, product = products.tensor_split((2 * units,), 1)
        given, given_new = steps[time].to(dtype).tensor_split((2 * units,), 1)
        both = (given + both).sigmoid()
        reset, update = both.chunk(2, 1)
        new = (given_new + reset * product).tanh()
        h = times.keep(time, h, new + update * (h - new))
        output[time], gates[time] = h, torch.cat([both, product, new], 1)
    state_dtype = _state_dtype(steps, hidden)
    return torch.stack(output).to(state_dtype), h.to(state_dtype, copy=True), torch.stack(gates)


def _gru_shapes(
    steps: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    *_: Any,
) -> tuple[_Tensor, ...]:
    count, rows, _ = steps.shape
    units, state_dtype = weight.shape[1], _state_dtype(steps, hidden)
    return (
        steps.new_empty((count, rows, units), dtype=state_dtype),
        steps.new_empty((rows, units), dtype=state_dtype),
        steps.new_empty((count, rows, 4 * units), dtype=_computed(steps.dtype)),
    )


def _gru_backward(
    grad_output: _Tensor | None,
    grad_last_hidden: _Tensor | None,
    output: _Tensor,
    gates: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    lengths: _Tensor | None,
    reverse: bool,
) -> tuple[_Tensor, ...]:
    times = _Times.of(gates, lengths, reverse)
    reset, update, product, new = gates.chunk(4, 2)
    of_new = (1 - update) * (1 - new * new)
    before = states_before(output.to(gates.dtype), hidden, reverse)
    # Derivatives by the hidden state.
    factors = torch.cat(
        [
            of_new * product * reset * (1 - reset),
            (before - new) * update * (1 - update),
            of_new * reset,
            of_new,
        ],
        2,
    )
    if times.valid is not None:
        factors = factors * times.valid
        update = update.masked_fill(~times.valid, 1)
    gradients = torch.empty_like(gates)
    h = _initial(grad_last_hidden, hidden, gates.dtype)
    for time in times.backward():
        if grad_output is not None:
            h = h + grad_output[time]
        torch.mul(factors[time], h.repeat(1, 4), out=gradients[time])
        h = h * update[time] + _product(gradients[time, :, : weight.shape[0]], weight)
    reset, update, product, new = gradients.to(weight.dtype).chunk(4, 2)
    return (
        torch.cat([reset, update, new], 2),
        torch.cat([reset, update, product], 2),
        h.to(hidden.dtype),
    )


def _gru_backward_shapes(
    grad_output: _Tensor | None,
    grad_last_hidden: _Tensor | None,
    output: _Tensor,
    gates: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    *_: Any,
) -> tuple[_Tensor, ...]:
    steps = (*gates.shape[:2], weight.shape[0])
    return weight.new_empty(steps), weight.new_empty(steps), hidden.new_empty(hidden.shape)


def _rnn(
    steps: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    lengths: _Tensor | None,
    relu: bool,
    reverse: bool,
) -> tuple[_Tensor, ...]:
    times = _Times.of(steps, lengths, reverse)
    dtype = _computed(steps.dtype)
    output = [steps] * times.count
    h = hidden.to(dtype)
    for time in times.forward():
        state = steps[time].to(dtype) + _product(h, weight.t())
        h = output[time] = times.keep(time, h, state.relu() if relu else state.tanh())
    state_dtype = _state_dtype(steps, hidden)
    return torch.stack(output).to(state_dtype), h.to(state_dtype, copy=True)


def _rnn_shapes(
    steps: _Tensor,
    hidden: _Tensor,
    *_: Any,
) -> tuple[_Tensor, ...]:
    state_dtype = _state_dtype(steps, hidden)
    return steps.new_empty(steps.shape, dtype=state_dtype), steps.new_empty(
        steps.shape[1:], dtype=state_dtype
    )


def _rnn_backward(
    grad_output: _Tensor | None,
    grad_last_hidden: _Tensor | None,
    output: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    lengths: _Tensor | None,
    relu: bool,
    reverse: bool,
) -> tuple[_Tensor, ...]:
    times = _Times.of(output, lengths, reverse)
    dtype = _computed(weight.dtype)
    gradients = torch.empty_like(output, dtype=dtype)
    h = _initial(grad_last_hidden, hidden, dtype)
    for time in times.backward():
        if grad_output is not None:
            h = h + grad_output[time]
        state = output[time].to(dtype)
        of_step = h * ((state > 0) if relu else (1 - state * state))
        if times.valid is not None:
            of_step = of_step * times.valid[time]
        gradients[time] = of_step
        h = times.keep(time, h, _product(of_step, weight))
    return gradients.to(weight.dtype), h.to(hidden.dtype)


def _rnn_backward_shapes(
    grad_output: _Tensor | None,
    grad_last_hidden: _Tensor | None,
    output: _Tensor,
    hidden: _Tensor,
    weight: _Tensor,
    *_: Any,
) -> tuple[_Tensor, ...]:
    return weight.new_empty(output.shape), hidden.new_empty(hidden.shape)


_define(
    "lstm(Tensor input, Tensor hidden, Tensor cell, Tensor input_weight, Tensor weight, "
    "Tensor? input_bias, Tensor? bias, Tensor? projection, Tensor? lengths, bool reverse) -> "
    "(Tensor output, Tensor last_hidden, Tensor last_cell, Tensor gates, Tensor cells)",
    _lstm,
    _lstm_shapes,
)
_define(
    "lstm_backward(Tensor? grad_output, Tensor? grad_last_hidden, Tensor? grad_last_cell, "
    "Tensor input, Tensor hidden, Tensor cell, Tensor input_weight, Tensor weight, "
    "Tensor? input_bias, Tensor? bias, Tensor? projection, Tensor? lengths, bool reverse, "
    "Tensor output, Tensor last_hidden, Tensor last_cell, Tensor gates, Tensor cells) -> "
    "(Tensor grad_input, Tensor grad_hidden, Tensor grad_cell, Tensor grad_input_weight, "
    "Tensor grad_weight, Tensor grad_bias, Tensor grad_projection)",
    _lstm_backward,
    _lstm_backward_shapes,
)
_define(
    "gru(Tensor steps, Tensor hidden, Tensor weight, Tensor? bias, Tensor? lengths, "
    "bool reverse) -> (Tensor output, Tensor last_hidden, Tensor gates)",
    _gru,
    _gru_shapes,
)
_define(
    "gru_backward(Tensor? grad_output, Tensor? grad_last_hidden, Tensor output, Tensor gates, "
    "Tensor hidden, Tensor weight, Tensor? lengths, bool reverse) -> (Tensor grad_steps, "
    "Tensor grad_products, Tensor grad_hidden)",
    _gru_backward,
    _gru_backward_shapes,
)
_define(
    "rnn(Tensor steps, Tensor hidden, Tensor weight, Tensor? lengths, bool relu, bool reverse) -> "
    "(Tensor output, Tensor last_hidden)",
    _rnn,
    _rnn_shapes,
)
_define(
    "rnn_backward(Tensor? grad_output, Tensor? grad_last_hidden, Tensor output, Tensor hidden, "
    "Tensor weight, Tensor? lengths, bool relu, bool reverse) -> (Tensor grad_steps, "
    "Tensor grad_hidden)",
    _rnn_backward,
    _rnn_backward_shapes,
)


def _save_lstm(ctx: Any, inputs: tuple[Any, ...], output: tuple[_Tensor, ...]) -> None:
    *tensors, ctx.reverse = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _differentiate_lstm(ctx: Any, *gradients: _Tensor | None) -> tuple[_Tensor | None, ...]:
    *tensors, output, last_hidden, last_cell, gates, cells = ctx.saved_tensors
    (
        of_input,
        of_hidden,
        of_cell,
        of_input_weight,
        of_weight,
        of_bias,
        of_projection,
    ) = torch.ops.braid.lstm_backward(
        *gradients[:3], *tensors, ctx.reverse, output, last_hidden, last_cell, gates, cells
    )
    input_bias, bias, projection = tensors[5:8]
    return (
        of_input,
        of_hidden,
        of_cell,
        of_input_weight,
        of_weight,
        None if input_bias is None else of_bias,
        None if bias is None else of_bias,
        None if projection is None else of_projection,
        None,
        None,
    )


def _save_gru(ctx: Any, inputs: tuple[Any, ...], output: tuple[_Tensor, ...]) -> None:
    _, hidden, weight, bias, lengths, ctx.reverse = inputs
    states, _, gates = output
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(states, gates, hidden, weight, lengths)


def _differentiate_gru(ctx: Any, *gradients: _Tensor | None) -> tuple[_Tensor | None, ...]:
    states, gates, hidden, weight, lengths = ctx.saved_tensors
    of_steps, of_products, of_hidden = torch.ops.braid.gru_backward(
        *gradients[:2], states, gates, hidden, weight, lengths, ctx.reverse
    )
    of_weight = _weight_gradient(of_products, states_before(states, hidden, ctx.reverse))
    of_bias = of_products.sum((0, 1)) if ctx.has_bias else None
    return of_steps, of_hidden, of_weight, of_bias, None, None


def _save_rnn(ctx: Any, inputs: tuple[Any, ...], output: tuple[_Tensor, ...]) -> None:
    _, hidden, weight, lengths, ctx.relu, ctx.reverse = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0], hidden, weight, lengths)


def _differentiate_rnn(ctx: Any, *gradients: _Tensor | None) -> tuple[_Tensor | None, ...]:
    states, hidden, weight, lengths = ctx.saved_tensors
    of_steps, of_hidden = torch.ops.braid.rnn_backward(
        *gradients, states, hidden, weight, lengths, ctx.relu, ctx.reverse
    )
    of_weight = _weight_gradient(of_steps, states_before(states, hidden, ctx.reverse))
    return of_steps, of_hidden, of_weight, None, None, None


for _name, _differentiate, _save in (
    ("lstm", _differentiate_lstm, _save_lstm),
    ("gru", _differentiate_gru, _save_gru),
    ("rnn", _differentiate_rnn, _save_rnn),
):
    torch.library.register_autograd(
        f"{NAMESPACE}::{_name}", _differentiate, setup_context=_save, lib=_library
    )
