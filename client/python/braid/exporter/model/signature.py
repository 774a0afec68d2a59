"""Input names from the arguments of forward, and output names as the server assigns them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter.export_errors import type_with_article

DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
    torch.bfloat16: "BF16",
}


def named_inputs(
    module: nn.Module, examples: Any, batch_dims: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Returns the examples by argument name, in the order of forward's arguments.

    batch_dims: dims of the batch, by input, where it is not dim 0.

    Raises TypeError, ValueError or ExportError for examples that do not fit.
    """
    arguments = _arguments(module)
    if isinstance(examples, Mapping):
        named = dict(examples)
    elif isinstance(examples, Sequence):
        named = _by_position(examples, arguments)
    else:
        raise TypeError(
            f"example_inputs: {type_with_article(examples)} "
            f"(expected a dict of name to tensor, or a tuple of tensors)"
        )
    takes_any = any(each.kind == inspect.Parameter.VAR_KEYWORD for each in arguments.values())
    for name, value in named.items():
        if name not in arguments and not takes_any:
            raise ValueError(
                f"example_inputs names '{name}', but forward() takes: {', '.join(arguments)}"
            )
        _check_input(name, value, batch_dims.get(name, 0))
    _check_complete(named, arguments)
    order = [name for name in arguments if name in named]
    ordered = order + [name for name in named if name not in order]
    rows = {name: named[name].shape[batch_dims.get(name, 0)] for name in ordered}
    if len(set(rows.values())) > 1:
        sizes = ", ".join(f"'{name}' has {count}" for name, count in rows.items())
        if batch_dims:
            dims = ", ".join(f"{batch_dims.get(name, 0)} of '{name}'" for name in ordered)
            raise ValueError(
                f"example_inputs: {sizes} rows (expected the same size of the batch: dim {dims})"
            )
        raise ValueError(
            f"example_inputs: {sizes} rows (expected the same dim 0, the batch, for all inputs); "
            f"split a list over the whole batch, such as edges or offsets, into one padded row each"
        )
    return {name: named[name].detach() for name in ordered}


def _arguments(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    if not isinstance(module, torch.jit.ScriptModule):
        return inspect.signature(module.forward).parameters
    _, *schemas = module.forward.schema.arguments
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {
        each.name: inspect.Parameter(
            each.name,
            kind,
            default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
        )
        for each in schemas
    }


def call(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
    """Calls the module, by position where forward's order allows.

    Forward hooks do not receive keyword arguments.
    """
    positional, named = split_arguments(module, inputs)
    return module(*positional, **named)


def split_arguments(
    module: nn.Module, inputs: Mapping[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    named = dict(inputs)
    positional = []
    for name in _positional(_arguments(module)):
        if name not in named:
            break
        positional.append(named.pop(name))
    return positional, named


def positional_names(module: nn.Module, count: int, path: str) -> list[str]:
    """Returns the names of the first `count` arguments of forward() of the submodule `path`."""
    names = _positional(inspect.signature(module.forward).parameters)
    if count > len(names):
        raise ExportError(
            f"stages: '{path}' receives {count} tensors, but its forward() takes {len(names)}"
        )
    return names[:count]


def _positional(arguments: Mapping[str, Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, each in arguments.items() if each.kind in kinds]


def _by_position(examples: Sequence, arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = _positional(arguments)
    if len(examples) > len(names):
        raise ValueError(
            f"example_inputs: {len(examples)} tensors, but forward() takes {len(names)} positional "
            f"arguments: {', '.join(names)} (pass a dict of name to tensor)"
        )
    return dict(zip(names, examples))


def _check_complete(named: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    if not named:
        raise ValueError("example_inputs: empty (expected at least one tensor)")
    for name, each in arguments.items():
        variadic = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.default is each.empty and not variadic and name not in named:
            raise ValueError(f"example_inputs: lacks '{name}', which forward() requires")
        if each.kind == each.POSITIONAL_ONLY and name in named:
            raise ExportError(
                f"forward() takes '{name}' as positional-only (expected a named argument)"
            )


def _check_input(name: str, value: Any, batch_dim: int) -> None:
    if not isinstance(value, torch.Tensor):
        raise ExportError(
            f"input '{name}' is {type_with_article(value)} (expected a tensor): set other "
            f"arguments of forward() by default values, or in a wrapper module"
        )
    if value.layout != torch.strided or value.dtype not in DATATYPES:
        raise ExportError(
            f"input '{name}' is {value.layout} {value.dtype} "
            f"(expected a dense tensor of a supported dtype)"
        )
    if value.dim() == 0:
        raise ExportError(f"input '{name}' has no dims (expected the batch as dim 0)")
    if value.dim() <= batch_dim:
        raise ValueError(
            f"batch_dim['{name}']: {batch_dim}, but input '{name}' has the shape "
            f"{list(value.shape)} (expected a dim from 0 to {value.dim() - 1})"
        )
    if value.shape[batch_dim] == 0:
        raise ValueError(f"input '{name}' has no rows (expected at least one)")


class NamesMismatch(ExportError):
    """The number of output names is not that of the outputs."""


def check_output_names(names: Sequence[str] | None) -> list[str]:
    """Returns the argument `output_names` as a list, empty for None.

    Raises TypeError or ValueError for names that a server does not accept.
    """
    if names is None:
        return []
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"output_names: {names!r} (expected a list of str)")
    checked = list(names)
    for place, name in enumerate(checked):
        if not name or checked.count(name) > 1:
            raise ValueError(f"output_names: '{name}' (expected names that are not empty or equal)")
        number = re.search(r"__(\d+)$", name)
        if number and int(number[1]) != place:
            raise ValueError(
                f"output_names: '{name}' is output {place} (a name that ends in __<number> means "
                "the output with that number)"
            )
    return checked


def flatten_outputs(
    result: Any, given: Sequence[str] = (), *, fields: bool = True
) -> tuple[list[str], list[torch.Tensor]]:
    """Returns the names and tensors of forward's result.

    Names are dict keys and the fields of dataclasses and named tuples, else output__<index>.

    given: names to use instead. Raises NamesMismatch unless there is one for each output.
    fields: False: indices for named tuples, as the server names the outputs of TorchScript.
    """
    leaves: list[tuple[str, torch.Tensor]] = []
    _flatten_into(result, "", leaves, fields)
    if not leaves:
        raise ExportError("forward() returns no tensor (expected at least one)")
    names = [path or f"output__{place}" for place, (path, _) in enumerate(leaves)]
    if given and len(given) != len(names):
        raise NamesMismatch(
            f"output_names: {len(given)} {'name' if len(given) == 1 else 'names'} for "
            f"{len(names)} {'output' if len(names) == 1 else 'outputs'} ({', '.join(names)})"
        )
    names = list(given) or names
    for name in names:
        if names.count(name) > 1:
            raise ExportError(f"forward() returns two tensors named '{name}'")
    for name, (_, tensor) in zip(names, leaves):
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else tensor.layout
            raise ExportError(
                f"output '{name}' is {kind} (expected a dense tensor: call to_dense() in forward)"
            )
    return names, [tensor for _, tensor in leaves]


def check_batch_dim(name: str, output: torch.Tensor, batch: int) -> None:
    """Raises ExportError unless dim 0 is the batch, or there are no dims."""
    if output.dim() > 0 and output.shape[0] != batch:
        raise ExportError(
            f"output '{name}' has the shape {list(output.shape)} for {batch} rows "
            f"(expected the batch as dim 0)"
        )


def _flatten_into(value: Any, path: str, leaves: list, fields: bool) -> None:
    if value is None:
        return  # The server omits it.
    if isinstance(value, torch.Tensor):
        leaves.append((path, value))
    elif fields and isinstance(value, tuple) and hasattr(value, "_fields"):
        _flatten_into(dict(zip(value._fields, value)), path, leaves, fields)
    elif isinstance(value, (tuple, list)):
        for index, element in enumerate(value):
            _flatten_into(element, f"{path}.{index}" if path else "", leaves, fields)
    elif isinstance(value, Mapping):
        for key, element in value.items():
            if not isinstance(key, str):
                raise ExportError(
                    f"forward() returns a dict with {type_with_article(key)} as key "
                    f"(expected a str)"
                )
            _flatten_into(element, f"{path}.{key}" if path else key, leaves, fields)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        _flatten_into(named, path, leaves, fields)
    else:
        raise ExportError(
            f"forward() returns {type_with_article(value)} "
            f"(expected tensors or None, or tuples, lists, dicts or dataclasses of them)"
        )
