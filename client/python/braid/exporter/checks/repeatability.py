"""Check that repeated runs of forward give the same result.

Python code runs only during tracing. State that forward keeps in Python objects, and random numbers
from other generators than PyTorch's, would become constants in a package.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter import export_errors, source
from braid.exporter.model import rows, run_context
from braid.exporter.model.run_context import in_mode
from braid.exporter.model.signature import call, flatten_outputs
from braid.exporter.model.snapshot import AttributeSnapshot, attributes_restored, restored
from braid.exporter.model.state import bindings_restored, device_of, run_state, tensors_placed
from braid.exporter.trace.joint_graph import Part, traced_batch_size

# Relative to the largest value: sums in another order count as equal.
_TOLERANCE = 1e-4


def check_repeatable(part: Part, training: bool) -> None:
    """Raises ExportError if a second run with the same batch, state and seed differs.

    Compares outputs, buffers, and the module's attributes, which the message names.
    """
    module = part.module
    with bindings_restored(module), attributes_restored(module):
        found = AttributeSnapshot(module)
        draws = _generators()
        first = _run(part, training)
        drawn = [name for name, state in _generators().items() if state != draws.get(name)]
        if drawn:
            raise _about_draws(part, training, drawn[0])
        between = AttributeSnapshot(module)
        second = _run(part, training)
        _check_attributes(between.changed(AttributeSnapshot(module)))
        if not all(map(_alike, first, second)):
            raise _about_results(found.changed(between))


def check_evaluation_is_repeatable(module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Raises ExportError if a second evaluation with the same batch and seed differs.

    Whether changes to the module persist depends on the format.
    """
    device = device_of(module)
    found = AttributeSnapshot(module)

    def run() -> list[torch.Tensor]:
        given = {name: each.clone() for name, each in inputs.items()}
        with run_context.seeded(device, 0):
            return [each.clone() for each in flatten_outputs(call(module, given))[1]]

    with restored(module), in_mode(module, False), torch.no_grad():
        first = run()
        between = AttributeSnapshot(module)
        second = run()
    if len(first) != len(second) or not all(map(_alike, first, second)):
        raise _about_results(found.changed(between))


def _check_attributes(changed: list[str]) -> None:
    if changed:
        raise ExportError(
            f"forward() changes the module's {_quoted(changed)} in every run, but a package would "
            f"keep the current value: use a buffer, or a random function of torch"
        )


def _about_results(changed: list[str]) -> ExportError:
    because = "; it keeps state in Python objects, or uses random numbers from outside PyTorch"
    if changed:
        because = f"; it changes the module's {_quoted(changed)}, which a package would not do"
    return ExportError(
        "forward() returns a different result in a second run with the same batch and seed"
        + because
    )


def _quoted(names: list[str]) -> str:
    return ("attribute " if len(names) == 1 else "attributes ") + ", ".join(map(repr, names))


def _run(part: Part, training: bool) -> list[torch.Tensor]:
    """Returns the outputs and the updated buffers."""
    inputs = {
        name: rows.repeat_rows(each, traced_batch_size(part)) for name, each in part.inputs.items()
    }
    state = run_state(part.entries, training)
    with part.in_mode(training), torch.set_grad_enabled(training):
        with (
            run_context.seeded(device_of(part.module), 0),
            tensors_placed(part.module, part.entries, state),
        ):
            try:
                outputs = flatten_outputs(call(part.module, inputs))[1]
            except ExportError:
                raise
            except Exception as error:
                raise export_errors.model_error("forward() fails in a second run", error) from error
    buffers = [state[entry.name] for entry in part.untied if entry.kind == "buffer"]
    return [each.detach().clone() for each in (*outputs, *buffers)]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    largest = one.nan_to_num().abs().max().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=_TOLERANCE * largest, equal_nan=True)


def _generators() -> dict[str, Any]:
    """Returns the states of the shared generators of Python and NumPy."""
    states: dict[str, Any] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy.random"] = repr(sys.modules["numpy"].random.get_state(legacy=False))
    return states


def _about_draws(part: Part, training: bool, library: str) -> ExportError:
    lines: list[str] = []
    with _calls_into(library, lines):
        _run(part, training)
    return ExportError(
        f"forward() draws random numbers from {library}, which would be constants in a package: "
        f"use torch" + source.as_suffix(lines[0] if lines else "")
    )


@contextmanager
def _calls_into(library: str, lines: list[str]) -> Iterator[None]:
    """Collects the model's lines that call the shared generator of `library`."""
    module = sys.modules[library]
    shared = random._inst if library == "random" else module.mtrand._rand

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__self__", None) is shared:
            lines.append(source.line_of_frame(frame))

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any, **options: Any) -> Any:
            lines.append(source.line_of_frame(sys._getframe(1)))
            return function(*arguments, **options)

        return record

    # A profile function does not see calls into NumPy 2.
    functions = {
        name: function
        for name, function in vars(module).items()
        if getattr(function, "__self__", None) is shared
    }
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        for name, function in functions.items():
            setattr(module, name, recording(function))
        yield
    finally:
        sys.setprofile(before)
        for name, function in functions.items():
            setattr(module, name, function)
