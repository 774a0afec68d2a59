"""Tracing of a module into one graph.

In training, the graph contains forward and backward, in evaluation forward only. Its inputs are
parameters, buffers and inputs, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy
import sympy
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from braid._export import ExportError
from braid.exporter import export_errors, torch_versions
from braid.exporter.model import rows, run_context
from braid.exporter.model.run_context import autocast, in_mode
from braid.exporter.model.signature import call, flatten_outputs
from braid.exporter.model.sizes import BATCH, Sizes, Symbol, VariableSizes
from braid.exporter.model.state import StateEntry, bindings_restored, tensors_placed
from braid.exporter.passes import embeddings, graph_utils
from braid.exporter.trace import (
    caught_errors,
    decompositions,
    embedding_bags,
    encoder_layers,
    guards,
    instance_norm,
    node_lines,
    recomputation,
    recurrent,
)
from braid.exporter.trace.caught_errors import Place
from braid.exporter.trace.kernel_strides import KernelStrides


@dataclass
class Part:
    """Module to export: the whole model, or one of its stages.

    entries: state of the part, named as in the whole model.
    inputs: examples by name.
    variable: variable dims of the inputs.
    sizes: sizes of the model's variable dims to check the part with, the example's first.
    traced_sizes: sizes of the model's variable dims that differ from other sizes of the part.
    resized: inputs of a stage for each of these sizes. None: `variable` resizes the inputs.
    evaluated: submodules that are in evaluation mode in training, too.
    names: output names.
    given_names: output names to use instead of the module's, or empty.
    copied: by training mode, True for each output that must be copied to own its memory.
    datatypes: by training mode and precision, dtypes of inputs that the previous stage computes
        under autocast.
    raised: by training mode and precision, lines where forward raises and catches errors in eager
        mode.
    recomputes: True if backward reruns parts of forward that change buffers.
    """

    path: str
    module: nn.Module
    entries: list[StateEntry]
    inputs: dict[str, torch.Tensor]
    variable: VariableSizes = field(default_factory=VariableSizes)
    sizes: list[Sizes] = field(default_factory=lambda: [{}])
    traced_sizes: Sizes = field(default_factory=dict)
    resized: list[tuple[Sizes, dict[str, torch.Tensor]]] | None = None
    evaluated: tuple[nn.Module, ...] = ()
    input_gradients: bool = False
    names: list[str] = field(default_factory=list)
    given_names: list[str] = field(default_factory=list)
    copied: dict[bool, list[bool]] = field(default_factory=dict)
    datatypes: dict[tuple[bool, torch.dtype], dict[str, torch.dtype]] = field(default_factory=dict)
    raised: dict[tuple[bool, torch.dtype | None], set[Place]] = field(default_factory=dict)
    recomputes: bool = False

    @property
    def untied(self) -> list[StateEntry]:
        return [entry for entry in self.entries if entry.tied_to is None]

    def in_mode(self, training: bool) -> AbstractContextManager[None]:
        return in_mode(self.module, training, self.evaluated)

    def at(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        """Returns the example inputs for `sizes` of the model's variable dims."""
        if self.resized is None:
            return self.variable.resize(self.inputs, sizes)
        return next(inputs for known, inputs in self.resized if known == sizes)

    def traced_symbols(self) -> dict[str, int]:
        """Returns the sizes of the part's own symbols for `traced_sizes`."""
        return self.variable.example(self.at(self.traced_sizes))

    def domains(self) -> dict[str, numpy.ndarray]:
        """Returns the sizes that a trace must be valid for, by symbol.

        The sizes of a stage's own symbols are those that the stage before computes.
        """
        found = {BATCH: guards.sizes_between(1, None)}
        for name, symbol in self.variable.symbols.items():
            found[name] = guards.sizes_between(symbol.min, symbol.max)
        if self.resized is not None:
            at = [self.variable.example(inputs) for _, inputs in self.resized]
            root = self.traced_sizes
            found |= {
                name: numpy.unique([max(2, each[name]) for each in at])
                for name in self.variable.symbols
                if name not in root
            }
        return found

    def examples(self, training: bool, precision: torch.dtype | None) -> dict[str, torch.Tensor]:
        return self.as_given(self.inputs, training, precision)

    def as_given(
        self, inputs: dict[str, torch.Tensor], training: bool, precision: torch.dtype | None
    ) -> dict[str, torch.Tensor]:
        """Converts `inputs` to the dtypes that they have under `precision`."""
        dtypes = self.datatypes.get((training, precision), {})
        return {name: each.to(dtypes.get(name, each.dtype)) for name, each in inputs.items()}

    def run(
        self,
        state: dict[str, torch.Tensor],
        inputs: dict[str, torch.Tensor],
        held: ExitStack | None = None,
    ) -> list:
        """Runs forward with `state`, updates its buffers in place, and returns the flat outputs.

        The module holds `state` until `held` is closed, because backward may rerun parts of
        forward. Without `held`, it holds `state` until forward returns.
        """
        with ExitStack() as done:
            (held or done).enter_context(bindings_restored(self.module))
            with tensors_placed(self.module, self.entries, state):
                return flatten_outputs(call(self.module, inputs))[1]


@dataclass(frozen=True)
class Trace:
    """Traced graph.

    graph: its placeholders are the state, the inputs and, in training, output gradients.
    forward_outputs: number of outputs of forward: changed buffers, then the outputs.
    symbols: symbolic sizes by name, the batch first.
    """

    graph: torch.fx.GraphModule
    forward_outputs: int
    symbols: dict[str, sympy.Symbol]
    device: torch.device


class _Function(nn.Module):
    """Wraps a function as a stateless module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        object.__setattr__(self, "function", function)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(*tensors)


@dataclass(frozen=True)
class _GuardedTrace:
    """Trace for one set of sizes, with the guards that it relies on."""

    trace: Trace
    shapes: ShapeEnv
    recorded: guards.RecordedGuards

    def operators(self) -> list[Any]:
        """Returns a description that is equal for traces with the same dynamic graph."""
        names = {symbol: sympy.Symbol(name) for name, symbol in self.trace.symbols.items()}

        def describe(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.dtype, [*map(describe, value.shape)]
            if isinstance(value, torch.SymInt):
                return str(value.node.expr.subs(names))
            return value if isinstance(value, int) else None

        def nodes(module: torch.fx.GraphModule) -> list[Any]:
            branches = graph_utils.branches(module).values()
            return [
                (n.name, repr((n.target, n.args, n.kwargs)), describe(n.meta.get("val")))
                for n in module.graph.nodes
            ] + [*map(nodes, branches)]

        return nodes(self.trace.graph)


def trace(part: Part, training: bool, precision: torch.dtype | None, device: torch.device) -> Trace:
    """Traces the part for all batch sizes and variable dims.

    Raises ExportError if that is not possible.

    precision: dtype of autocast, or None for the model's own precision.
    """
    sizes = {BATCH: traced_batch_size(part)} | part.traced_symbols()
    guarded = _trace(part, training, precision, device, sizes)

    def trace_alike(others: Sizes, same_results: bool) -> guards.Answered | None:
        try:
            other = _trace(part, training, precision, device, others, binding=False)
        except Exception:  # The model may reject these sizes with any error.
            return None
        if other.operators() != guarded.operators():
            if not same_results or not _returns_the_same(part, precision, guarded, other, others):
                return None
        return guards.Answered(other.trace.symbols, other.recorded)

    made = guarded.trace
    answered = guards.Answered(made.symbols, guarded.recorded)
    guards.check_sizes(guarded.shapes, answered, sizes, part.domains(), trace_alike)
    node_lines.copy_to_backward(made.graph)
    if training and part.recomputes:
        recomputation.merge(made.graph)
    return made


def _returns_the_same(
    part: Part,
    precision: torch.dtype | None,
    one: _GuardedTrace,
    other: _GuardedTrace,
    sizes: Sizes,
) -> bool:
    """Returns True if both graphs compute the same. sizes: of the inputs, as in `other`."""
    given: list[torch.Tensor] = [entry.copy() for entry in part.untied]
    inputs = rows.vary_inputs(part.variable.resize(part.inputs, sizes), sizes[BATCH])
    training = len(graph_utils.placeholders(other.trace.graph)) > len(given) + len(inputs)
    given += part.as_given(inputs, training, precision).values()
    generator = torch.Generator().manual_seed(0)
    for node in graph_utils.placeholders(other.trace.graph)[len(given) :]:
        like = node.meta["val"]
        shape = [each.node.hint if isinstance(each, torch.SymInt) else each for each in like.shape]
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        given.append(drawn.to(like.device, like.dtype))
    results = []
    for each in (one, other):
        with torch.no_grad(), run_context.seeded(each.trace.device, 0):
            try:
                run = torch.fx.Interpreter(each.trace.graph).run(
                    *(tensor.clone() for tensor in given), enable_io_processing=False
                )
            except Exception:  # The graph may be wrong for these sizes in any way.
                return False
        results.append(pytree.tree_leaves(run, is_leaf=lambda tensor: tensor is None))
    return len(results[0]) == len(results[1]) and all(map(_alike, *results))


def _alike(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point() or one.numel() == 0:
        return torch.equal(one, other)
    low = one.dtype in (torch.float16, torch.bfloat16)
    allowed = (3e-2 if low else 1e-4) * one.nan_to_num().abs().max().item()
    return torch.allclose(one, other, rtol=0, atol=allowed, equal_nan=True)


def _trace(
    part: Part,
    training: bool,
    precision: torch.dtype | None,
    device: torch.device,
    sizes: Sizes,
    binding: bool = True,
) -> _GuardedTrace:
    """Traces inputs of these sizes. binding: see `guards.record`."""
    entries, names = part.untied, list(part.inputs)

    held = ExitStack()

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held.close()
        state = {entry.name: tensor for entry, tensor in zip(entries, tensors)}
        with autocast(device, precision):
            outputs = part.run(state, dict(zip(names, tensors[len(entries) :])), held)
        return tuple(
            tensor.clone(memory_format=torch.contiguous_format) if copied else tensor
            for tensor, copied in zip(outputs, part.copied[training])
        )

    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    recorded = guards.record(shapes, __file__, binding)
    mode = KernelStrides(shape_env=shapes, allow_non_fake_inputs=True)
    symbols = {
        name: _symbol(mode, size, part.variable.symbols.get(name)) for name, size in sizes.items()
    }
    fakes = _fakes(part, mode, training, precision, symbols)
    # Before the trace, which may replace symbols by values.
    expressions = {name: size.node.expr for name, size in symbols.items()}
    with ExitStack() as stack:
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(part.in_mode(training))
        stack.enter_context(recurrent.as_operators())
        stack.enter_context(instance_norm.as_group_norm())
        stack.enter_context(embedding_bags.with_offsets())
        stack.enter_context(decompositions.patched())
        stack.enter_context(torch_versions.without_tokens())
        stack.enter_context(node_lines.recorded(__file__))
        # Libraries check these flags before they read values for a warning or a shortcut.
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            stack.enter_context(mock.patch.object(torch.compiler, flag, True))
        if not training:
            stack.enter_context(torch.no_grad())
            stack.enter_context(_whole_operators(precision))
            if precision is None:
                stack.enter_context(encoder_layers.fused())
        stack.enter_context(held)
        if training and part.recomputes:
            stack.enter_context(recomputation.recorded())
        raised = stack.enter_context(caught_errors.recorded())
        try:
            joint = aot_export_joint_with_descriptors(
                stack, _Function(function), fakes, decompositions={}
            )
        except ExportError:
            raise
        except Exception as error:
            failed = export_errors.lacks_operator_name(error) and _failing_function(
                mode, function, fakes
            )
            raise export_errors.trace_error(error, failed or "") from error
        caught_errors.check_traced(raised, part.raised[training, precision])
    for condition, node in embeddings.limits_of_positions(joint.graph_module):
        recorded.conditions[condition] = node_lines.line_of(node)
    forward_outputs = joint._aot_state.fw_metadata.num_forward
    return _GuardedTrace(
        Trace(joint.graph_module, forward_outputs, expressions, device), shapes, recorded
    )


class _Failing(TorchFunctionMode):
    """Records the PyTorch function that raised the first error."""

    name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.name = self.name or func.__name__
            raise


def _failing_function(mode: FakeTensorMode, function: Any, fakes: tuple[torch.Tensor, ...]) -> str:
    """Returns the name of the function that fails in forward, or an empty string."""
    with mode, _Failing() as failing, suppress(Exception):
        function(*fakes)
    return failing.name


def _symbol(mode: FakeTensorMode, size: int, symbol: Symbol | None) -> torch.SymInt:
    """Returns a new symbolic size. symbol: None for the batch."""
    bounds = None
    if symbol is not None:
        most = int_oo if symbol.max is None else symbol.max
        # A symbolic size is never 1: the comparison with the module covers it.
        bounds = [StrictMinMaxConstraint(False, ValueRanges(max(2, symbol.min), most))]
    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC], constraint_sizes=bounds or [None]
    )
    return mode.from_tensor(torch.empty(size), symbolic_context=context).shape[0]


def _fakes(
    part: Part,
    mode: FakeTensorMode,
    training: bool,
    precision: torch.dtype | None,
    symbols: Mapping[str, torch.SymInt],
) -> tuple[torch.Tensor, ...]:
    tensors = []
    with mode:
        for entry in part.untied:
            like = entry.tensor
            fake = torch.empty(like.shape, dtype=like.dtype, device=like.device)
            tensors.append(fake.requires_grad_(training and entry.trainable))
        for name, example in part.examples(training, precision).items():
            shape = [symbols[BATCH], *example.shape[1:]]
            for dim, each in part.variable.dims.get(name, {}).items():
                shape[dim] = each.of(symbols)
            fake = torch.empty(shape, dtype=example.dtype, device=example.device)
            wanted = training and part.input_gradients and example.is_floating_point()
            tensors.append(fake.requires_grad_(wanted))
    return tuple(tensors)


def traced_batch_size(part: Part) -> int:
    """Returns a batch size that differs from all other sizes, so that none is mistaken for it."""
    taken = fixed_sizes(part) | set(part.traced_symbols().values())
    return next(rows for rows in (5, 7, 11, 13, *range(17, 1 << 20, 2)) if rows not in taken)


def fixed_sizes(part: Part) -> set[int]:
    """Returns the sizes of the part's state and example inputs, except the batch."""
    taken = {size for entry in part.entries for size in entry.tensor.shape}
    return taken | {size for example in part.inputs.values() for size in example.shape[1:]}


def _whole_operators(precision: torch.dtype | None) -> Any:
    """Keeps composite operators such as linear and conv2d as one node each."""
    table, _ = _split_decomp_table_to_cia_and_python_decomp({})
    taken_apart = set(decompositions.RULES)
    if precision is not None:
        taken_apart |= recurrent.WHOLE
    # PyTorch's shape rules of some losses return a scalar for every reduction.
    for operator in list(table):
        if "_loss" in operator.name() or operator in taken_apart:
            del table[operator]
    return _override_composite_implicit_decomp(table)
