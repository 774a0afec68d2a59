"""Variable sizes of inputs, other than the batch: symbols with bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from braid.exporter.export_errors import type_with_article

BATCH = "batch"
# Sizes by symbol.
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Symbol:
    """Variable size. max: None without a limit."""

    name: str
    min: int = 1
    max: int | None = None

    def clamp(self, size: int) -> int:
        return max(self.min, size if self.max is None else min(size, self.max))

    def __str__(self) -> str:
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"


@dataclass(frozen=True)
class VariableDim:
    """Size of a dim: `factor` times the symbol's size."""

    symbol: str
    factor: int = 1

    def of(self, sizes: Mapping[str, Any]) -> Any:
        """Returns the size. sizes: numbers or symbolic sizes."""
        return self.factor * sizes[self.symbol]


@dataclass(frozen=True)
class VariableSizes:
    """Variable dims of inputs.

    symbols: by name, in the order of the inputs.
    dims: by input and dim. Dim 0, the batch, is not among them.
    """

    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    dims: Mapping[str, Mapping[int, VariableDim]] = field(default_factory=dict)

    def resize(
        self, inputs: Mapping[str, torch.Tensor], sizes: Sizes
    ) -> dict[str, torch.Tensor]:
        """Repeats or cuts the variable dims of `inputs`."""
        resized = {}
        for name, tensor in inputs.items():
            for dim, each in self.dims.get(name, {}).items():
                index = torch.arange(each.of(sizes), device=tensor.device) % tensor.shape[dim]
                tensor = tensor.index_select(dim, index)
            resized[name] = tensor
        return resized

    def example(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Returns the sizes of `inputs`."""
        return {
            each.symbol: inputs[name].shape[dim] // each.factor
            for name, of_input in self.dims.items()
            for dim, each in of_input.items()
        }

    def row_of(self, name: str, example: torch.Tensor) -> list[int]:
        """Returns the shape of an input without the batch. A variable size is -1."""
        dims = self.dims.get(name, {})
        return [-1 if dim in dims else size for dim, size in enumerate(example.shape)][1:]

    def smallest(self) -> dict[str, int]:
        return {name: each.min for name, each in self.symbols.items()}

    def tested(self, example: Sizes) -> list[dict[str, int]]:
        """Returns different sizes within the bounds: the example's, small, large and mixed ones."""
        large = {name: each.clamp(2 * example[name] + 1) for name, each in self.symbols.items()}
        small = self.smallest()
        next_to_small = {name: each.clamp(each.min + 1) for name, each in self.symbols.items()}
        found = [dict(example), small, large, next_to_small]
        for parity in (0, 1):
            found.append(
                {
                    name: (small, large)[(place + parity) % 2][name]
                    for place, name in enumerate(self.symbols)
                }
            )
        return [each for place, each in enumerate(found) if each not in found[:place]]

    def traced(self, taken: Iterable[int]) -> dict[str, int]:
        """Returns sizes that differ from each other and from `taken`, where the bounds allow it."""
        used = set(taken)
        sizes = {}
        for name, symbol in self.symbols.items():
            factors = {each.factor for dims in self.dims.values() for each in dims.values()}
            first = max(symbol.min, 3)
            last = first + 1000 if symbol.max is None else symbol.max
            free = [
                size
                for size in range(first, min(last, first + 1000) + 1)
                if not used & {size, *(factor * size for factor in factors)}
            ]
            # A prime has no remainder or factor in common with other sizes.
            primes = (size for size in free if all(size % each for each in range(2, size)))
            sizes[name] = next(primes, free[0] if free else last)
            used |= {sizes[name], *(factor * sizes[name] for factor in factors)}
        return sizes


def sizes_suffix(sizes: Sizes) -> str:
    """Describes variable sizes in a message, or returns an empty string."""
    text = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return f" with {text}" if text else ""


def parse(
    dynamic: Any, inputs: Mapping[str, torch.Tensor], batch_dims: Mapping[str, int]
) -> VariableSizes:
    """Returns the variable dims that the argument `dynamic` of `braid.export` declares.

    inputs, dynamic: with the batch at `batch_dims`, by input, or else at dim 0. The result is for
        inputs with the batch at dim 0.

    Raises TypeError or ValueError if it is not valid, or if the example does not fit.
    """
    if dynamic is None:
        return VariableSizes()
    if not isinstance(dynamic, Mapping):
        raise TypeError(
            f"dynamic: {type_with_article(dynamic)} (expected a dict, for example "
            f"{{'ids': {{1: 'seq'}}}})"
        )
    symbols: dict[str, Symbol] = {}
    dims: dict[str, dict[int, VariableDim]] = {}
    for name, of_input in dynamic.items():
        if name not in inputs:
            known = ", ".join(inputs)
            raise ValueError(f"dynamic: unknown input '{name}' (expected one of {known})")
        if not isinstance(of_input, Mapping):
            raise TypeError(
                f"dynamic['{name}']: {type_with_article(of_input)} (expected a dict from dims to "
                f"symbols, for example {{1: 'seq'}})"
            )
        for dim, declared in of_input.items():
            where = f"dynamic['{name}'][{dim}]"
            place = _check_dim(where, dim, inputs[name], batch_dims.get(name, 0))
            symbol, factor = _read(where, declared)
            _add(where, symbol, symbols)
            if place in dims.setdefault(name, {}):
                raise ValueError(f"{where}: dim {place} is declared twice")
            dims[name][place] = VariableDim(symbol.name, factor)
    # In the order of the inputs, so that messages and files do not depend on the dict's.
    ordered = {name: dict(sorted(dims[name].items())) for name in inputs if name in dims}
    names = [each.symbol for of_input in ordered.values() for each in of_input.values()]
    variable = VariableSizes({name: symbols[name] for name in names}, ordered)
    _check_example(variable, inputs)
    return VariableSizes(
        variable.symbols,
        {
            name: {dim + (dim < batch_dims.get(name, 0)): each for dim, each in of_input.items()}
            for name, of_input in ordered.items()
        },
    )


def _check_dim(where: str, dim: Any, example: torch.Tensor, batch_dim: int) -> int:
    whole = isinstance(dim, int) and not isinstance(dim, bool)
    if not whole or not -example.dim() <= dim < example.dim():
        others = f"0 to {example.dim() - 1}, without {batch_dim}"
        expected = others if batch_dim else f"1 to {example.dim() - 1}"
        raise ValueError(f"{where}: invalid dim (expected a dim from {expected})")
    place = dim % example.dim()
    if place == batch_dim:
        raise ValueError(f"{where}: dim {batch_dim} is the batch, which takes any size")
    return place


def _read(where: str, declared: Any) -> tuple[Symbol, int]:
    if isinstance(declared, str):
        return _checked(where, Symbol(declared)), 1
    if isinstance(declared, (tuple, list)) and len(declared) == 3 and isinstance(declared[0], str):
        return _checked(where, Symbol(*declared)), 1
    if hasattr(declared, "root") and hasattr(declared, "fn"):
        factor = int(declared.fn(1) - declared.fn(0))
        if declared.fn(0) == 0 and not hasattr(declared.root, "root"):
            return _of_dim(where, declared.root), factor
    elif isinstance(declared, torch.export.Dim) and hasattr(declared, "__name__"):
        return _of_dim(where, declared), 1
    raise TypeError(
        f"{where}: {declared!r} (expected a name such as 'seq', a name with bounds such as "
        f"('seq', 1, 512), a torch.export.Dim, or a multiple of one)"
    )


def _of_dim(where: str, dim: Any) -> Symbol:
    # Without bounds, torch.export.Dim has 0 and infinity, which is no int.
    most = int(dim.max) if isinstance(dim.max, int) else None
    return _checked(where, Symbol(dim.__name__, max(1, int(dim.min)), most))


def _checked(where: str, symbol: Symbol) -> Symbol:
    if not symbol.name.isidentifier() or symbol.name == BATCH:
        raise ValueError(
            f"{where}: '{symbol.name}' (expected a name of letters, digits and '_' other than "
            f"'{BATCH}')"
        )
    bounds = [symbol.min] if symbol.max is None else [symbol.min, symbol.max]
    if any(not isinstance(each, int) or isinstance(each, bool) for each in bounds):
        raise TypeError(f"{where}: bounds {symbol.min!r} and {symbol.max!r} (expected int)")
    if symbol.min < 1 or (symbol.max is not None and symbol.max < max(symbol.min + 1, 2)):
        raise ValueError(
            f"{where}: bounds {symbol.min} and {symbol.max} (expected a minimum of at least 1, and "
            f"a larger maximum)"
        )
    return symbol


def _add(where: str, symbol: Symbol, symbols: dict[str, Symbol]) -> None:
    """Adds `symbol`. A name without bounds takes those of another place."""
    known = symbols.setdefault(symbol.name, symbol)
    if symbol == known or symbol == Symbol(symbol.name):
        return
    if known != Symbol(symbol.name):
        raise ValueError(
            f"{where}: '{symbol.name}' is {symbol}, but elsewhere {known} (expected the same "
            f"bounds)"
        )
    symbols[symbol.name] = symbol


def _check_example(variable: VariableSizes, inputs: Mapping[str, torch.Tensor]) -> None:
    first: dict[str, tuple[str, int, int]] = {}
    for name, of_input in variable.dims.items():
        for dim, each in of_input.items():
            size, symbol = inputs[name].shape[dim], variable.symbols[each.symbol]
            where = f"example_inputs: dim {dim} of '{name}' is {size}"
            if size == 0 or size % each.factor != 0:
                raise ValueError(f"{where} (expected a positive multiple of {each.factor})")
            value = size // each.factor
            if value != symbol.clamp(value):
                raise ValueError(f"{where}, so '{symbol.name}' is {value} (expected {symbol})")
            other, place, known = first.setdefault(symbol.name, (name, dim, value))
            if known != value:
                raise ValueError(
                    f"{where}, so '{symbol.name}' is {value} (expected {known}, as in dim {place} "
                    f"of '{other}')"
                )
