"""Inputs and outputs whose batch is not dim 0, such as [time, batch, features].

The exporter, the graphs of a pair and a server's batches all have the batch at dim 0.
`BatchDims.applied` makes the module take and return such tensors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.export_errors import type_with_article
from braid.exporter.model import run_context
from braid.exporter.model.run_context import in_mode
from braid.exporter.model.signature import call, flatten_outputs
from braid.exporter.model.snapshot import restored
from braid.exporter.model.state import device_of

Tensors = Mapping[str, torch.Tensor]


def parse(batch_dim: Any) -> dict[str, int]:
    """Returns the argument `batch_dim` of `braid.export`: dims above 0 by input or output.

    Raises TypeError or ValueError if it is not valid.
    """
    if batch_dim is None:
        return {}
    if not isinstance(batch_dim, Mapping):
        raise TypeError(
            f"batch_dim: {type_with_article(batch_dim)} (expected a dict, for example "
            f"{{'x': 1, 'output__0': 1}})"
        )
    for name, dim in batch_dim.items():
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
            raise ValueError(f"batch_dim['{name}']: {dim!r} (expected a dim of at least 0)")
    return {name: dim for name, dim in batch_dim.items() if dim > 0}


class BatchDims:
    """Batch dims of a module.

    dims: result of parse().
    output_names: names to use instead of the module's, or empty.
    """

    def __init__(self, module: nn.Module, dims: Mapping[str, int], output_names: list[str]) -> None:
        self._module = module
        self._dims = dims
        self._output_names = output_names
        self._original = vars(module).get("forward")

    def __bool__(self) -> bool:
        return bool(self._dims)

    def of(self, name: str) -> int:
        return self._dims.get(name, 0)

    def to_front(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Returns contiguous tensors with the batch at dim 0."""
        return {name: self.move_to_front(name, each) for name, each in tensors.items()}

    def move_to_front(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        dim = self.of(name)
        return tensor.movedim(dim, 0).contiguous() if 0 < dim < tensor.dim() else tensor

    def from_front(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Inverse of to_front(). Contiguous, because modules view inputs in other shapes."""
        return {
            name: each.movedim(0, self.of(name)).contiguous() if self.of(name) else each
            for name, each in tensors.items()
        }

    def check(self, inputs: Tensors) -> None:
        """Raises ExportError or ValueError if the module's outputs do not fit. Runs the module.

        inputs: as the module takes them.
        """
        if not self:
            return
        module, device = self._module, device_of(self._module)
        if isinstance(module, torch.jit.ScriptModule):
            raise ExportError("batch_dim: the module is TorchScript (expected a Python module)")
        if module._forward_pre_hooks or module._forward_hooks:
            raise ExportError(
                "batch_dim: the module has a forward hook (call the module in "
                "forward() of another one, and export that)"
            )
        try:
            with restored(module), in_mode(module, False), torch.no_grad():
                with run_context.seeded(device, 0):
                    result = call(module, {name: each.clone() for name, each in inputs.items()})
                    outputs = dict(zip(*flatten_outputs(result, self._output_names)))
        except ExportError:
            raise
        except Exception as error:
            raise export_errors.to_export_error(error) from error
        for name in self._dims:
            if name not in inputs and name not in outputs:
                raise ValueError(
                    f"batch_dim: unknown tensor '{name}' (expected one of "
                    f"{', '.join([*inputs, *outputs])})"
                )
        first, example = next(iter(inputs.items()))
        count = example.shape[self.of(first)]
        for name, output in outputs.items():
            dim = self.of(name)
            fits = output.shape[dim] == count if dim < output.dim() else output.dim() == dim == 0
            if not fits:
                raise ExportError(
                    f"output '{name}' has the shape {list(output.shape)} for {count} rows "
                    f"(expected the batch as dim {dim}; set another dim in batch_dim['{name}'])"
                )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Makes the module take and return tensors with the batch at dim 0.

        Outputs become a dict or a tuple with the same names.
        """
        if not self:
            yield
            return
        with self._forward(self._moved(self._module.forward)):
            yield

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restores the module's own forward() within applied()."""
        if not self:
            yield
            return
        with self._forward(self._original):
            yield

    @contextmanager
    def _forward(self, forward: Any) -> Iterator[None]:
        """Sets forward() of the module. None: the class's."""
        attributes = vars(self._module)
        before = attributes.get("forward")
        _set_forward(attributes, forward)
        try:
            yield
        finally:
            _set_forward(attributes, before)

    def _moved(self, forward: Any) -> Any:
        arguments = list(inspect.signature(forward).parameters)

        @functools.wraps(forward)  # keeps the signature
        def moved(*positional: Any, **named: Any) -> Any:
            given = self.from_front(dict(zip(arguments, positional)) | named)
            ordered = [given.pop(name) for name in arguments[: len(positional)]]
            names, tensors = flatten_outputs(forward(*ordered, **given), self._output_names)
            results = [self.move_to_front(name, each) for name, each in zip(names, tensors)]
            if all(name == f"output__{place}" for place, name in enumerate(names)):
                return tuple(results)
            return dict(zip(names, results))

        return moved


def _set_forward(attributes: dict[str, Any], forward: Any) -> None:
    if forward is None:
        attributes.pop("forward", None)
    else:
        attributes["forward"] = forward
