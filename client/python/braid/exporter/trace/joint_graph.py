"""Tracing of a module into one graph.

In training, the graph contains forward and backward, in evaluation forward only. Its inputs are
parameters, buffers and inputs, in this order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

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
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode

from braid._export import ExportError
from braid.exporter import export_errors, torch_versions
from braid.exporter.model.run_context import autocast, in_mode
from braid.exporter.model.signature import call, flatten_outputs
from braid.exporter.model.state import StateEntry, bindings_restored, tensors_placed
from braid.exporter.trace import (
    caught_errors,
    decompositions,
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
    """

    graph: torch.fx.GraphModule
    forward_outputs: int
    symbol: Any
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
    """Trace for one number of rows, with the guards that it relies on."""

    trace: Trace
    shapes: ShapeEnv
    recorded: guards.RecordedGuards

    def operators(self) -> list[Any]:
        """Returns a description that is equal for traces with the same dynamic graph."""
        symbol = self.trace.symbol

        def describe(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.dtype, [*map(describe, value.shape)]
            if isinstance(value, torch.SymInt):
                return str(value.node.expr.subs(symbol, sympy.Symbol("rows")))
            return value if isinstance(value, int) else None

        return [
            (node.name, repr((node.target, node.args, node.kwargs)), describe(node.meta.get("val")))
            for node in self.trace.graph.graph.nodes
        ]


def trace(part: Part, training: bool, precision: torch.dtype | None, device: torch.device) -> Trace:
    """Traces the part for any number of rows. Raises ExportError if that is not possible.

    precision: dtype of autocast, or None for the model's own precision.
    """
    count = traced_batch_size(part)
    guarded = _trace(part, training, precision, device, count)

    def trace_alike(rows: int) -> tuple[Any, guards.RecordedGuards] | None:
        try:
            other = _trace(part, training, precision, device, rows, binding=False)
        except Exception:  # The model may reject this number of rows with any error.
            return None
        if other.operators() != guarded.operators():
            return None
        return other.trace.symbol, other.recorded

    made = guarded.trace
    guards.check_dynamic_batch(guarded.shapes, made.symbol, count, guarded.recorded, trace_alike)
    node_lines.copy_to_backward(made.graph)
    if training and part.recomputes:
        recomputation.merge(made.graph)
    return made


def _trace(
    part: Part,
    training: bool,
    precision: torch.dtype | None,
    device: torch.device,
    count: int,
    binding: bool = True,
) -> _GuardedTrace:
    """Traces a batch of `count` rows. binding: see `guards.record`."""
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
    fakes = _fakes(part, mode, training, precision, count)
    symbol = fakes[-1].shape[0].node.expr
    with ExitStack() as stack:
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(part.in_mode(training))
        stack.enter_context(recurrent.as_operators())
        stack.enter_context(instance_norm.as_group_norm())
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
    forward_outputs = joint._aot_state.fw_metadata.num_forward
    return _GuardedTrace(
        Trace(joint.graph_module, forward_outputs, symbol, device), shapes, recorded
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


def _fakes(
    part: Part, mode: FakeTensorMode, training: bool, precision: torch.dtype | None, count: int
) -> tuple[torch.Tensor, ...]:
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    batch = mode.from_tensor(torch.empty(count), symbolic_context=dynamic).shape[0]
    tensors = []
    for entry in part.untied:
        fake = mode.from_tensor(entry.copy(), static_shapes=True)
        tensors.append(fake.requires_grad_(training and entry.trainable))
    with mode:
        for example in part.examples(training, precision).values():
            shape = (batch, *example.shape[1:])
            fake = torch.empty(shape, dtype=example.dtype, device=example.device)
            wanted = training and part.input_gradients and example.is_floating_point()
            tensors.append(fake.requires_grad_(wanted))
    return tuple(tensors)


def traced_batch_size(part: Part) -> int:
    """Returns a batch size that differs from all other sizes, so that none is mistaken for it."""
    taken = {size for entry in part.entries for size in entry.tensor.shape}
    taken |= {size for example in part.inputs.values() for size in example.shape[1:]}
    return next(rows for rows in (5, 7, 11, 13, *range(17, 1 << 20, 2)) if rows not in taken)


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
