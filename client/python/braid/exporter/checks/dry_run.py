"""Eager runs of a module before tracing, which can name the model's line for each problem."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.checks.operators import OperatorCheck
from braid.exporter.checks.repeatability import check_repeatable
from braid.exporter.model import rows, run_context
from braid.exporter.model.run_context import autocast
from braid.exporter.model.signature import call, flatten_outputs
from braid.exporter.model.sizes import Sizes, sizes_suffix
from braid.exporter.model.state import (
    bindings_restored,
    bitwise_equal,
    current_tensor,
    device_of,
    run_state,
    tensors_placed,
)
from braid.exporter.trace import caught_errors
from braid.exporter.trace.caught_errors import RaisedError
from braid.exporter.trace.joint_graph import Part, traced_batch_size


def run(part: Part) -> None:
    """Runs the module to find output names, and outputs that share memory.

    Raises ExportError, with the line, for anything that a package does not support.
    """
    # Copies, so that uses of the module's own parameters are found.
    parameters = {each.name: each.copy() for each in part.untied if each.kind == "parameter"}
    for training in (True, False):
        # A module with a fixed number of rows fails here, with its line.
        for count, sizes in _batches(part):
            inputs = rows.repeat_inputs(part.at(sizes), count)
            state = _copied_state(part, parameters, training)
            with part.in_mode(training), torch.set_grad_enabled(training):
                with caught_errors.recorded() as raised:
                    names, outputs = _run_watched(part, state, inputs, sizes)
            caught_errors.check_eager(raised)
            _note_raised(part, training, None, raised)
            if names != (part.names or names):
                raise ExportError(
                    f"forward() returns {', '.join(part.names)} or {', '.join(names)} (expected "
                    f"the same outputs for all batches, in training and evaluation)"
                )
            part.names = names
        part.copied[training] = _copied(outputs, [*state.values(), *inputs.values()], training)
        if not part.path:  # The check of the whole model covers its stages.
            check_repeatable(part, training)


def _batches(part: Part) -> list[tuple[int, Sizes]]:
    """Returns numbers of rows, each with sizes of the variable dims. The last ones are traced."""
    count = traced_batch_size(part)
    return [(count + 1, part.sizes[0]), (count, part.traced_sizes)]


def run_precision(part: Part, precision: torch.dtype) -> None:
    """Runs the module under autocast to find errors that it raises and catches."""
    device = device_of(part.module)
    for training in (True, False):
        for count, sizes in _batches(part):
            examples = part.as_given(part.at(sizes), training, precision)
            inputs = rows.repeat_inputs(examples, count)
            state = run_state(part.entries, training)
            with part.in_mode(training), torch.set_grad_enabled(training):
                with (
                    run_context.seeded(device, 0),
                    caught_errors.recorded() as raised,
                    ExitStack() as held,
                ):
                    with autocast(device, precision):
                        outputs = _run_under_autocast(part, state, inputs, held)
                    if count == traced_batch_size(part):
                        _run_backward(outputs, state)
            _note_raised(part, training, precision, raised)


def _run_under_autocast(
    part: Part, state: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor], held: ExitStack
) -> list[torch.Tensor]:
    try:
        return part.run(state, inputs, held)
    except Exception as error:
        raise export_errors.model_error("forward() fails under autocast", error) from error


def _run_backward(outputs: list[torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    """Runs backward, which may rerun parts of forward, to find unsupported operators.

    Also finds errors that the model's own backward catches. The trace reports other errors.
    """
    differentiable = [each for each in outputs if each.requires_grad]
    trained = [each for each in state.values() if each.requires_grad]
    if not differentiable or not trained:
        return
    gradients = [torch.ones_like(each) for each in differentiable]
    try:
        torch.autograd.grad(differentiable, trained, gradients, allow_unused=True)
    except ExportError:
        raise
    except Exception:
        pass


def _note_raised(
    part: Part, training: bool, precision: torch.dtype | None, raised: list[RaisedError]
) -> None:
    places = part.raised.setdefault((training, precision), set())
    places.update(each.place for each in raised)


def _copied_state(
    part: Part, parameters: dict[str, torch.Tensor], training: bool
) -> dict[str, torch.Tensor]:
    """Returns copies of the state, all but buffers from `parameters`."""
    state = {}
    for entry in part.untied:
        copied = parameters.get(entry.name)
        tensor = entry.copy() if copied is None else copied.detach()
        state[entry.name] = tensor.requires_grad_(training and entry.trainable)
    return state


def _run_watched(
    part: Part, state: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor], sizes: Sizes
) -> tuple[list[str], list[torch.Tensor]]:
    fixed = [(f"the input '{name}'", each) for name, each in inputs.items()]
    named = [(f"the {entry.kind} '{entry.name}'", entry) for entry in part.untied]
    fixed += [
        (description, state[each.name]) for description, each in named if each.kind == "parameter"
    ]
    buffers = [
        (description, state[each.name]) for description, each in named if each.kind == "buffer"
    ]
    replaced = [(description, each.tensor) for description, each in named]
    device = device_of(part.module)
    count = next(iter(inputs.values())).shape[0]
    with run_context.seeded(device, 0), bindings_restored(part.module):
        watch = OperatorCheck(device, fixed, buffers, replaced)
        try:
            with watch, tensors_placed(part.module, part.entries, state):
                names, outputs = flatten_outputs(call(part.module, inputs), part.given_names)
        except ExportError:
            raise
        except Exception as error:
            where = (
                f"forward() fails for a batch of {count}{sizes_suffix(sizes)}{_about_layout(part)}"
            )
            raise export_errors.model_error(where, error) from error
        if count == traced_batch_size(part):
            with watch:
                part.recomputes |= _changes_buffers_in_backward(part, state, outputs)
    return names, outputs


def _changes_buffers_in_backward(
    part: Part, state: dict[str, torch.Tensor], outputs: list[torch.Tensor]
) -> bool:
    """Returns True if backward changes a buffer. Raises ExportError if it assigns a new tensor."""
    names = [entry.name for entry in part.untied if entry.kind == "buffer"]
    before = {name: state[name].detach().clone() for name in names}
    _run_backward(outputs, state)
    for entry in part.untied:
        if entry.kind == "buffer" and current_tensor(part.module, entry) is not state[entry.name]:
            raise ExportError(
                f"backward reruns a part of forward, as torch.utils.checkpoint does, which assigns "
                f"a new tensor to the buffer '{entry.name}' (write to the buffer in place)"
            )
    return not all(bitwise_equal(state[name], was) for name, was in before.items())


def _about_layout(part: Part) -> str:
    """Names the tensors whose strides the export changed, as a possible cause of an error."""
    strided = [each.name for each in part.untied if each.tensor.stride() != each.copy().stride()]
    if not strided:
        return ""
    return f" with {', '.join(map(repr, strided))} contiguous, as on a server"


def _copied(outputs: list[torch.Tensor], given: list[torch.Tensor], training: bool) -> list[bool]:
    memory = [tensor.untyped_storage().data_ptr() for tensor in given]
    copied = []
    for tensor in outputs:
        mine = tensor.untyped_storage().data_ptr()
        # Backward receives gradients with the contiguous strides of the outputs.
        awkward = training and (tensor._is_view() or not tensor.is_contiguous())
        copied.append(awkward or (mine in memory and tensor.numel() > 0))
        memory.append(mine)
    return copied


def min_rows(part: Part, device: torch.device) -> list[int]:
    """Returns the minimum number of rows in training and in evaluation, for all sizes."""
    return [1 if _takes_one_row(part, device, training) else 2 for training in (True, False)]


def _takes_one_row(part: Part, device: torch.device, training: bool) -> bool:
    for sizes in part.sizes:
        inputs = rows.repeat_inputs(part.at(sizes), 1)
        state = run_state(part.entries)
        with run_context.seeded(device, 0), part.in_mode(training), torch.no_grad():
            try:
                part.run(state, inputs)
            except (ValueError, RuntimeError):  # For example from batch norm: no variance.
                return False
    return True
