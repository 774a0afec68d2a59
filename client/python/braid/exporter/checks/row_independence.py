"""Numeric test that a row's outputs do not depend on the other rows of its batch.

The server merges requests and splits batches only for such modules. The module runs in evaluation
mode, with its own and with random weights, on batches built from the example's rows:

- Other rows change, the batch size does not. Shapes and kernels are the same, so the outputs of an
  independent row are the same. One variant fills the other rows with NaN; the others detect
  dependence that masks NaN. Vectorized functions may round a value differently if its neighbours in
  a vector register are large, so differences within rounding do not count.
- The batch size changes, the row does not. Other kernels run, with other rounding.

A zero weight hides dependence, as in `x + self.a * x.mean(0)` with a = 0. The module therefore also
runs with nonzero random weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from braid.exporter import export_errors
from braid.exporter.checks import differences
from braid.exporter.model import rows, run_context, snapshot
from braid.exporter.model.run_context import in_mode
from braid.exporter.model.signature import call, flatten_outputs
from braid.exporter.model.state import (
    bindings_restored,
    bitwise_equal,
    device_of,
    reparametrized,
    state_entries,
)

INDEPENDENT, DEPENDENT, UNDECIDED = "independent", "dependent", "undecided"

# Largest difference of an approximate dependence, relative to the output's largest value. For
# example, dynamic quantization shares one scale per batch: up to 4e-2 in models of 1 to 3 layers.
APPROXIMATE = 5e-2

_SEED = 23
_ROWS = 7
# Rounding with the same kernels, in units of the dtype's epsilon, and with other kernels. Both
# relative to the largest value.
_ROUNDING = 16
_OTHER_KERNELS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2}
_OTHER_KERNELS_OF_LOW_PRECISION = 5e-2
# Allowance for models that amplify rounding, in multiples of the effect of changing the last bits
# of the weights, and its limit relative to the largest value.
_AMPLIFICATION = 8
_MAX_AMPLIFIED = 1e-2
_NUDGES = (1, 2)
# Costs per row. A more expensive model runs on fewer batches.
_SMALL_FLOPS = 5e7
_SMALL_ELEMENTS = 1e6
_ONE_THREAD_FLOPS = 1e9

_BASE = "values like the example's"
_LIKE = "other values like the example's"
_NORMAL = "random normal values"
_LARGE = "large random values"
_ZEROS = "zeros"
_NAN = "NaN"
_HOLES = "some NaN"
_LARGE_VALUE = 1e4

# Rows of each batch, as indices into the base rows. The first batch that contains a row is the
# reference for the others.
_FOUR = (0, 1, 2, 3)
_BATCHES = ((0,), (2,), (0, 1), (0, 1, 2), _FOUR, (2, 0, 3, 1), tuple(range(_ROWS)))
_FEW_BATCHES = ((2,), (0, 1), _FOUR)
# The second exceeds the server's default maximum batch size.
_LARGE_BATCHES = [tuple(place % _ROWS for place in range(count)) for count in (33, 257)]


@dataclass(frozen=True)
class _Change:
    """Replacement of rows in a batch of `count` by another kind. own: kind of the original rows."""

    count: int
    places: tuple[int, ...]
    kind: str
    own: str = _BASE


_CHANGES = (
    _Change(4, (0, 1, 3), _LIKE),
    _Change(4, (3,), _LIKE),
    _Change(7, (6,), _LIKE),
    _Change(3, (0, 2), _LIKE),
    _Change(4, (1, 2, 3), _NORMAL),
    _Change(7, (2, 3, 4), _NORMAL),
    _Change(2, (1,), _NORMAL),
    _Change(4, (0, 1, 2), _LARGE),
    _Change(4, (0,), _LARGE),
    _Change(7, (1,), _LARGE),
    _Change(2, (0,), _LARGE),
    _Change(4, (2, 3), _ZEROS),
    _Change(4, (0,), _NAN),
    _Change(4, (3,), _NAN),
    _Change(7, (0, 1, 2, 4, 5, 6), _NAN),
    _Change(3, (1,), _NAN),
    # Detects models that fill missing values from other rows.
    _Change(4, (0, 3), _LIKE, own=_NORMAL),
    _Change(4, (0, 3), _LIKE, own=_LARGE),
    _Change(4, (0, 3), _LIKE, own=_ZEROS),
    _Change(4, (0, 3), _LIKE, own=_HOLES),
)
_FEW_CHANGES = (
    _Change(4, (0, 1, 3), _LIKE),
    _Change(4, (1, 2, 3), _LARGE),
    _Change(4, (0,), _NAN),
    _Change(4, (3,), _NAN),
)

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RowIndependence:
    """Result of the test.

    result: INDEPENDENT, DEPENDENT or UNDECIDED.
    evidence: an observed dependence, or the reason for UNDECIDED. Empty if INDEPENDENT.
    approximate: rows like the example's change each other by at most APPROXIMATE.
    by_shape: an output's shape shows the dependence; its batches cannot be merged or split.
    one_number: the only dependent outputs have no dims: one number for all rows.
    failed: forward failed for the example's rows.
    flops: floating-point operations of forward per row; 0 if unknown.
    """

    result: str
    evidence: str = ""
    approximate: bool = False
    by_shape: bool = False
    one_number: bool = False
    failed: bool = False
    flops: float = field(default=0.0, compare=False)

    @property
    def holds(self) -> bool:
        return self.result == INDEPENDENT

    def as_json(self) -> dict[str, str]:
        return {"result": self.result, "evidence": self.evidence}


def check(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], output_names: Sequence[str] = ()
) -> RowIndependence:
    """Runs `module` on batches built from the rows of `inputs`, and restores it.

    Does not raise: the result for a module that fails is UNDECIDED.
    """
    flops = 0.0
    try:
        with bindings_restored(module), snapshot.attributes_restored(module), torch.no_grad():
            test = _Test(module, dict(inputs), output_names)
            flops = test.flops if math.isfinite(test.flops) else 0.0
            with _threads(test.threads):
                return replace(test.result(), flops=flops)
    except _Decided as decided:
        return replace(decided.result, flops=flops)
    except Exception as error:  # The model may raise anything.
        return RowIndependence(
            UNDECIDED, f"forward() fails: {export_errors.describe(error)}", failed=True
        )


class _Decided(Exception):
    """Ends the test early with a result."""

    def __init__(self, result: str, evidence: str, by_shape: bool = False) -> None:
        super().__init__(evidence)
        self.result = RowIndependence(result, evidence, by_shape=by_shape)


class _Subject:
    """Module on a device, run with replaceable weights. Writes only to copies of its state."""

    def __init__(
        self, module: nn.Module, device: torch.device, output_names: Sequence[str]
    ) -> None:
        self.device = device
        # The state of a TorchScript module cannot be replaced.
        self._output_names = output_names
        self._is_copy = any(isinstance(e, torch.jit.ScriptModule) for e in module.modules())
        self._module = copy.deepcopy(module).to(device) if self._is_copy else module
        self._entries = state_entries(self._module)
        untied = [entry for entry in self._entries if entry.tied_to is None]
        self.weights = {e.name: e.copy().to(device) for e in untied if e.kind == "parameter"}
        self._buffers = {e.name: e.copy().to(device) for e in untied if e.kind == "buffer"}

    def run(self, weights: Tensors, given: Tensors) -> tuple[Tensors, bool]:
        """Returns the outputs, and True if forward drew random numbers. All runs use one seed."""
        state = {**weights, **{name: each.clone() for name, each in self._buffers.items()}}
        given = {name: each.to(self.device, copy=True) for name, each in given.items()}
        with in_mode(self._module, False), run_context.seeded(self.device, _SEED):
            before = run_context.random_state(self.device)
            with self._holding(state):
                result = call(self._module, given)
                outputs = dict(zip(*flatten_outputs(result, self._output_names)))
            return outputs, not torch.equal(before, run_context.random_state(self.device))

    def _holding(self, state: Tensors) -> Any:
        if not self._is_copy:
            return reparametrized(self._module, self._entries, state)
        for entry in self._entries:
            entry.tensor.data.copy_(state[entry.tied_to or entry.name])
        return nullcontext()


class _Test:
    """Test of one module.

    base: rows that batches are built from.
    small: True if one row is cheap, so that many batches run.
    large_batch: rows of the largest batch.
    flops: floating-point operations per row, infinite if unknown.
    threads: number of threads that pays off for the module's cost.
    """

    def __init__(self, module: nn.Module, inputs: Tensors, output_names: Sequence[str]) -> None:
        device = device_of(module)
        self.subject = _Subject(module, device, output_names)
        # NaN may become an index out of range, which makes the GPU unusable for the process.
        self.on_gpu = device.type == "cuda"
        self._rehearsal = None
        if self.on_gpu:
            self._rehearsal = _Subject(module, torch.device("cpu"), output_names)
        weights = self.subject.weights
        self.base, _ = rows.run_varied(inputs, _ROWS, lambda g: self.subject.run(weights, g))
        self._others = _ReplacementRows(inputs, _fewest_embeddings(module), self._takes_integers)
        flops, elements = self._cost_of_row()
        self.flops = flops
        size = flops / _SMALL_FLOPS + elements / _SMALL_ELEMENTS
        self.small = size < 1
        self.large_batch = _LARGE_BATCHES[size < 0.05]
        self.threads = 1 if flops < _ONE_THREAD_FLOPS else torch.get_num_threads()
        self.shapes = _Shapes()
        self.compared: set[str] = set()

    def result(self) -> RowIndependence:
        own = _Trial(self, self.subject.weights)
        trials, found = [own], own.evidence()
        for weights in self._weight_draws(own):
            trials.append(_Trial(self, weights, " (with random weights)"))
            found += trials[-1].evidence()
        if found:
            ordinary = max(each.ordinary for each in trials)
            return RowIndependence(DEPENDENT, found[0], approximate=0 < ordinary <= APPROXIMATE)
        if numbers := self.shapes.numbers:
            evidence = f"output '{numbers[0]}' has no dims: it is one number for all rows"
            return RowIndependence(DEPENDENT, evidence, one_number=True)
        if missing := [name for name in self.shapes.of_rows if name not in self.compared]:
            raise _Decided(
                UNDECIDED,
                f"output '{missing[0]}' cannot be compared: forward() rejects other rows, or "
                f"returns no finite value",
            )
        return RowIndependence(INDEPENDENT)

    def batch(self, places: Sequence[int], kind: str = _BASE) -> Tensors:
        """Returns rows of a kind, selected by index."""
        return {
            name: (each if kind == _BASE else self._others.draw(name, kind))[list(places)]
            for name, each in self.base.items()
        }

    def with_others(self, change: _Change) -> Tensors:
        own = self.batch(range(change.count), change.own)
        others = self.batch(range(change.count), change.kind)
        places = [row + change.count * (row in change.places) for row in range(change.count)]
        return {name: torch.cat([each, others[name]])[places] for name, each in own.items()}

    def takes(self, given: Tensors) -> bool:
        """Returns True if forward accepts `given`. A GPU module runs as a copy on the CPU."""
        subject = self._rehearsal or self.subject
        try:
            subject.run(subject.weights, given)
        except Exception:  # The model may raise anything.
            return False
        return True

    def _takes_integers(self, name: str, limits: tuple[int, int]) -> bool:
        given = self.batch(_FOUR)
        low, high = (torch.full_like(given[name][:1], limit) for limit in limits)
        given[name] = torch.cat([given[name][:2], low, high])
        return self.takes(given)

    def _weight_draws(self, own: _Trial) -> Iterator[Tensors]:
        """Yields nonzero weights far from the module's own, then near. A large model uses one."""
        weights = self.subject.weights
        if not any(each.is_floating_point() for each in weights.values()):
            return
        usable = False
        for draw in (_far, _near):
            with run_context.seeded(self.subject.device, _SEED):
                drawn = {name: draw(each) for name, each in weights.items()}
            if own.is_comparable_with(drawn):
                usable = True
                yield drawn
                if not self.small:
                    return
        if not usable:
            raise _Decided(
                UNDECIDED, "with random weights, outputs are not finite, or forward() fails"
            )

    def _cost_of_row(self) -> tuple[float, float]:
        """Returns FLOPs and output elements of operators per row, infinite if unknown."""
        try:
            with FlopCounterMode(display=False) as operations, _Elements() as elements:
                self.subject.run(self.subject.weights, self.batch(_FOUR))
        except Exception:  # The counter does not know the shapes of every operator.
            return math.inf, math.inf
        return operations.get_total_flops() / len(_FOUR), elements.count / len(_FOUR)


class _Trial:
    """Runs with one set of weights. about: describes the weights in evidence.

    ordinary: largest difference beyond rounding for rows like the example's, relative to the
        output's largest value. Infinite if only one of two values is finite.
    """

    def __init__(self, test: _Test, weights: Tensors, about: str = "") -> None:
        self._test = test
        self._weights = weights
        self._about = about
        self._outputs: dict[tuple[int, ...], Tensors] = {}  # By rows of the batch.
        self._draws = False
        self._noise: dict[str, float] = {}
        self.ordinary = 0.0

    def evidence(self) -> list[str]:
        """Describes each output row that another row or the number of rows changes."""
        small = self._test.small
        batches = _BATCHES if small else _FEW_BATCHES
        if small and not self._about:
            batches = (*batches, self._test.large_batch)
        for places in batches:
            self._run_batch(places)
        self._test.shapes.check()
        self._check_repeats()
        changes = _CHANGES if small else _FEW_CHANGES
        found = [each for change in changes for each in self._of_others(change)]
        if not self._draws:
            return found + list(self._of_sizes())
        self._noise = {}
        with _ConstantDraws():  # Random numbers depend on the batch size.
            for places in list(self._outputs):
                self._run_batch(places)
            return found + list(self._of_sizes())

    def is_comparable_with(self, weights: Tensors) -> bool:
        """Returns True if outputs with `weights` are finite where those of this trial are."""
        try:
            outputs, _ = self._test.subject.run(weights, self._test.batch(_FOUR))
        except Exception:  # The model may raise anything.
            return False
        return all(
            outputs[name].isfinite().any() or not own.isfinite().any()
            for name, own in self._outputs[_FOUR].items()
        )

    def _run(self, given: Tensors) -> Tensors:
        outputs, drew = self._test.subject.run(self._weights, given)
        self._test.shapes.add(len(next(iter(given.values()))), outputs)
        self._draws = self._draws or drew
        return outputs

    def _run_batch(self, places: tuple[int, ...]) -> None:
        try:
            self._outputs[places] = self._run(self._test.batch(places))
        except Exception as error:
            if len(places) > 1 or isinstance(error, _Decided):
                raise  # One row may be too few, for example for batch norm.

    def _check_repeats(self) -> None:
        again = self._run(self._test.batch(_FOUR))
        for name, output in self._outputs[_FOUR].items():
            if not self._is_rounding(name, output, again[name], same_kernels=True):
                raise _Decided(
                    UNDECIDED,
                    "forward() returns a different result for the same batch and seed",
                )

    def _of_others(self, change: _Change) -> Iterator[str]:
        own = self._test.batch(range(change.count), change.own)
        given = self._test.with_others(change)
        if all(map(bitwise_equal, own.values(), given.values())):
            return
        before, after = self._outputs_of(own, change.own), self._outputs_of(given, change.kind)
        if before is None or after is None:
            return
        kept = [row for row in range(change.count) if row not in change.places]
        how = f"when {_rows(change.places)} {change.kind}"
        if change.own != _BASE:
            how += f" and the others {change.own}"
        ordinary = change.kind == _LIKE and change.own == _BASE
        for name in self._test.shapes.of_rows:
            for row in kept:
                where = f"row {row} in a batch of {change.count}"
                rows_of = before[name][row], after[name][row]
                yield from self._compare(name, *rows_of, where, how, ordinary, same_kernels=True)

    def _outputs_of(self, given: Tensors, kind: str) -> Tensors | None:
        """Returns the outputs, or None if forward rejects rows of that kind."""
        places = tuple(range(len(next(iter(given.values())))))
        if kind == _BASE:
            return self._outputs[places]
        # Values like the example's are within its range.
        if self._test.on_gpu and kind != _LIKE and not self._test.takes(given):
            return None
        try:
            return self._run(given)
        except _Decided:
            raise
        except Exception:  # The model may raise anything.
            return None

    def _of_sizes(self) -> Iterator[str]:
        for name in self._test.shapes.of_rows:
            first: dict[int, tuple[str, torch.Tensor]] = {}
            for places, outputs in self._outputs.items():
                output = outputs[name].reshape(len(places), -1)
                labels = [f"row {row} in a batch of {len(places)}" for row in range(len(places))]
                for row, place in enumerate(places):
                    first.setdefault(place, (labels[row], output[row]))
                before = torch.stack([first[place][1] for place in places])
                if differences.difference(before, output) == 0.0:
                    continue
                for row, place in enumerate(places):
                    where, alone = first[place]
                    how = f"when it is {labels[row]}"
                    yield from self._compare(
                        name, alone, output[row], where, how, ordinary=True, same_kernels=False
                    )

    def _compare(
        self,
        name: str,
        before: torch.Tensor,
        after: torch.Tensor,
        where: str,
        how: str,
        ordinary: bool,
        same_kernels: bool,
    ) -> Iterator[str]:
        if same_kernels and (before.isfinite().any() or before.numel() == 0):
            self._test.compared.add(name)
        gap, largest = differences.difference(before, after), self._largest(name, before)
        if ordinary and gap > _rounding(before, same_kernels) * largest:
            self.ordinary = max(self.ordinary, gap / largest if largest else math.inf)
        if self._is_rounding(name, before, after, same_kernels):
            return
        what = f"differs by up to {gap:.2g}"
        if gap == math.inf:
            finite = after.isfinite().sum() > before.isfinite().sum()
            what = "becomes finite" if finite else "becomes NaN or infinite"
        yield f"output '{name}' of {where} {what} {how}{self._about}"

    def _is_rounding(
        self, name: str, before: torch.Tensor, after: torch.Tensor, same_kernels: bool
    ) -> bool:
        gap, largest = differences.difference(before, after), self._largest(name, before)
        if gap <= _rounding(before, same_kernels) * largest:
            return True
        amplified = _AMPLIFICATION * self._noise_of(name)
        if before.is_floating_point():
            amplified = min(amplified, _MAX_AMPLIFIED * largest)
        return gap <= amplified

    def _largest(self, name: str, output: torch.Tensor) -> float:
        outputs = self._outputs[_FOUR][name], output
        return max(map(differences.largest, outputs))

    def _noise_of(self, name: str) -> float:
        """Returns an output's largest change when the last bits of weights, or inputs, change."""
        if not self._noise:
            self._noise = dict.fromkeys(self._outputs[_FOUR], 0.0)
            for seed in _NUDGES:
                for each, output in self._nudged(seed).items():
                    moved = differences.difference(self._outputs[_FOUR][each], output)
                    self._noise[each] = max(self._noise[each], moved)
        return self._noise[name]

    def _nudged(self, seed: int) -> Tensors:
        weights, given = self._weights, self._test.batch(_FOUR)
        with run_context.seeded(self._test.subject.device, seed):
            if weights:
                weights = {name: _nudge(each) for name, each in weights.items()}
            else:
                given = {name: _nudge(each) for name, each in given.items()}
        return self._test.subject.run(weights, given)[0]


class _Shapes:
    """Shapes of outputs by number of rows."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, list[int]]] = {}

    def add(self, count: int, outputs: Tensors) -> None:
        """Adds outputs. Ends the test if names or shapes depend on more than the number of rows."""
        names = list(self._known or outputs)
        if list(outputs) != names:
            raise _Decided(
                UNDECIDED,
                f"forward() returns {', '.join(names)} or {', '.join(outputs)}",
                by_shape=True,
            )
        for name, tensor in outputs.items():
            shape = list(tensor.shape)
            before = self._known.setdefault(name, {}).setdefault(count, shape)
            if shape != before:
                raise _Decided(
                    DEPENDENT,
                    f"output '{name}' of {count} rows has the shape {before} or {shape}, which "
                    f"depends on values",
                    by_shape=True,
                )

    def check(self) -> None:
        """Ends the test unless dim 0 of each output, if any, is the only batch-dependent dim."""
        for name in self._known:
            if name in self.numbers:
                continue
            shapes = self._several(name)
            most = max(shapes)
            wrong = [
                count
                for count, shape in shapes.items()
                if shape[:1] != [count] or shape[1:] != shapes[most][1:]
            ]
            if wrong:
                few = wrong[-2] if len(wrong) > 1 else wrong[0]
                found = f"{shapes[few]} for {few} row{'s' * (few > 1)}"
                if few != most:
                    found += f" and {shapes[most]} for {most}"
                raise _Decided(DEPENDENT, f"output '{name}' has the shape {found}", by_shape=True)

    @property
    def numbers(self) -> list[str]:
        """Outputs without dims."""
        return [name for name in self._known if not any(self._several(name).values())]

    @property
    def of_rows(self) -> list[str]:
        return [name for name in self._known if name not in self.numbers]

    def _several(self, name: str) -> dict[int, list[int]]:
        """Returns shapes by number of rows, without a single row that squeeze() removed."""
        known = dict(sorted(self._known[name].items()))
        if known.get(1) == [] and any(known.values()):
            del known[1]
        return known


class _ReplacementRows:
    """Draws replacement rows.

    embeddings: size of the smallest embedding, or None.
    takes: returns True if forward accepts integers within two limits for an input.
    """

    def __init__(
        self,
        inputs: Tensors,
        embeddings: int | None,
        takes: Callable[[str, tuple[int, int]], bool],
    ) -> None:
        self._inputs = inputs
        self._limits = {
            name: _widest(name, example, embeddings, takes)
            for name, example in inputs.items()
            if not example.is_floating_point() and example.dtype != torch.bool and example.numel()
        }

    def draw(self, name: str, kind: str) -> torch.Tensor:
        """Returns as many rows as there are base rows."""
        example = self._inputs[name]
        place = list(self._inputs).index(name)
        shape = (_ROWS, *example.shape[1:])
        if kind == _LIKE or example.numel() == 0:
            return rows.vary(example, _ROWS, _SEED + place).flip(0)
        generator = torch.Generator().manual_seed(_SEED + place)
        if example.is_floating_point():
            values = torch.randn(shape, generator=generator)
            if kind == _HOLES:
                values.masked_fill_(torch.rand(shape, generator=generator) < 0.5, math.nan)
            else:
                values *= {_NORMAL: 1.0, _LARGE: _LARGE_VALUE, _ZEROS: 0.0, _NAN: math.nan}[kind]
        elif example.dtype == torch.bool:
            values = torch.randint(2, shape, generator=generator)
        else:
            low, high = self._limits[name]
            values = torch.randint(low, high + 1, shape, generator=generator)
        return values.to(example.device, example.dtype)


class _Elements(TorchDispatchMode):
    """Counts the output elements of operators, except views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(each.alias_info for each in func._schema.returns):
            tensors = [e for e in pytree.tree_leaves(result) if isinstance(e, torch.Tensor)]
            self.count += sum(each.numel() for each in tensors)
        return result


class _ConstantDraws(TorchDispatchMode):
    """Replaces random numbers by constants that do not depend on the row or batch size."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            for each in pytree.tree_leaves(result):
                if isinstance(each, torch.Tensor):
                    each.fill_(1 if each.is_floating_point() or each.dtype == torch.bool else 0)
        return result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the number of threads. For small work, spinning threads cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fewest_embeddings(module: nn.Module) -> int | None:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return min((e.num_embeddings for e in module.modules() if isinstance(e, kinds)), default=None)


def _widest(
    name: str,
    example: torch.Tensor,
    embeddings: int | None,
    takes: Callable[[str, tuple[int, int]], bool],
) -> tuple[int, int]:
    """Widest integer range that forward accepts, at least the example's."""
    numbers = example.cpu().numpy()  # PyTorch lacks min() for some integer types.
    low, high = int(numbers.min()), int(numbers.max())
    least, most = torch.iinfo(example.dtype).min, torch.iinfo(example.dtype).max
    candidates = [(low - 3, high + 3), (low, high + 3), (low, high + 1)]
    if embeddings is not None and 0 <= low and high < embeddings:
        candidates.insert(0, (0, embeddings - 1))
    for few, many in candidates:
        limits = max(few, least), min(many, most, (1 << 63) - 2)
        if takes(name, limits):
            return limits
    return low, high


def _far(weights: torch.Tensor) -> torch.Tensor:
    """Returns nonzero random numbers of both signs with the tensor's magnitude."""
    if not weights.is_floating_point() or weights.numel() == 0:
        return weights
    far = _away_from_zero(_signed(weights)).mul_(_size(weights))
    return far if _is_finite(weights) else torch.where(weights.isfinite(), far, weights)


def _near(weights: torch.Tensor) -> torch.Tensor:
    """Changes weights by up to a tenth, and replaces zeros by a tenth of the tensor's magnitude."""
    if not weights.is_floating_point() or weights.numel() == 0:
        return weights
    random = _signed(weights)
    small = 0.1 * _size(weights) * _away_from_zero(random.clone())
    return torch.where(weights == 0, small, weights * (1 + 0.1 * random))


def _signed(like: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(like).mul_(2).sub_(1)


def _away_from_zero(random: torch.Tensor) -> torch.Tensor:
    """Adds a half to the magnitude of each number, in place."""
    return random.add_(random.sign().div_(2))


def _is_finite(tensor: torch.Tensor) -> bool:
    low, high = tensor.aminmax()
    return bool(low.isfinite() & high.isfinite())


def _size(weights: torch.Tensor) -> torch.Tensor | float:
    """Returns the root mean square, or a layer's initial scale for an all-zero tensor."""
    finite = weights if _is_finite(weights) else weights.masked_fill(~weights.isfinite(), 0.0)
    size = finite.float().square().mean().sqrt().to(weights.dtype)
    if size > 0:
        return size
    return (weights.shape[0] / weights.numel()) ** 0.5 if weights.dim() > 1 else 0.5


def _nudge(tensor: torch.Tensor) -> torch.Tensor:
    """Changes random floating-point elements by one unit in the last place, up or down."""
    if not tensor.is_floating_point():
        return tensor
    steps = torch.randint_like(tensor, -1, 2)
    return tensor * (1 + torch.finfo(tensor.dtype).eps * steps)


def _rounding(output: torch.Tensor, same_kernels: bool) -> float:
    if not output.is_floating_point():
        return 0.0
    if same_kernels:
        return _ROUNDING * torch.finfo(output.dtype).eps
    return _OTHER_KERNELS.get(output.dtype, _OTHER_KERNELS_OF_LOW_PRECISION)


def _rows(places: Sequence[int]) -> str:
    if len(places) == 1:
        return f"row {places[0]} holds"
    *most, last = map(str, sorted(places))
    return f"rows {', '.join(most)} and {last} hold"
