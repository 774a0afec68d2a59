"""Traces a module into one graph: forward and backward together in training, forward alone in
evaluation. Parameters, buffers and inputs are the graph's inputs, in this order."""

from __future__ import annotations

from contextlib import ExitStack, suppress
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
    """A module to export: the whole model, or one of its stages.

    entries: of the whole model's state, those that are the part's, named as in the whole model.
    inputs: examples by name. names: the outputs'.
    copied: of training and evaluation (by True and False), which outputs have to be copied to be
        tensors of their own.
    datatypes: of training and evaluation under a precision of autocast, the inputs', where the
        stage before computes them then.
    raised: of training and evaluation under a precision, where forward raises errors in plain
        PyTorch too, and catches them.
    recomputes: whether backward runs parts of forward again that change buffers.
    """

    path: str
    module: nn.Module
    entries: list[StateEntry]
    inputs: dict[str, torch.Tensor]
    input_gradients: bool = False
    names: list[str] = field(default_factory=list)
    copied: dict[bool, list[bool]] = field(default_factory=dict)
    datatypes: dict[tuple[bool, torch.dtype], dict[str, torch.dtype]] = field(default_factory=dict)
    raised: dict[tuple[bool, torch.dtype | None], set[Place]] = field(default_factory=dict)
    recomputes: bool = False

    @property
    def untied(self) -> list[StateEntry]:
        return [entry for entry in self.entries if entry.tied_to is None]

    def examples(self, training: bool, precision: torch.dtype | None) -> dict[str, torch.Tensor]:
        return self.as_given(self.inputs, training, precision)

    def as_given(
        self, inputs: dict[str, torch.Tensor], training: bool, precision: torch.dtype | None
    ) -> dict[str, torch.Tensor]:
        """`inputs` in the datatypes that they have under `precision`."""
        dtypes = self.datatypes.get((training, precision), {})
        return {name: each.to(dtypes.get(name, each.dtype)) for name, each in inputs.items()}

    def run(
        self,
        state: dict[str, torch.Tensor],
        inputs: dict[str, torch.Tensor],
        held: ExitStack | None = None,
    ) -> list:
        """Returns the flat outputs of forward with `state`, which takes the changes of buffers.

        The module holds `state` until `held` is closed: a backward may run parts of forward again.
        Without `held` it does until forward is done.
        """
        with ExitStack() as done:
            (held or done).enter_context(bindings_restored(self.module))
            with tensors_placed(self.module, self.entries, state):
                return flatten_outputs(call(self.module, inputs))[1]


@dataclass(frozen=True)
class Trace:
    """graph: its placeholders are the state, the inputs and, in training, output gradients.
    forward_outputs: how many of its outputs are forward's: changed buffers, then the outputs."""

    graph: torch.fx.GraphModule
    forward_outputs: int
    symbol: Any
    device: torch.device


class _Function(nn.Module):
    """A function as a module that has no state of its own."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        object.__setattr__(self, "function", function)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(*tensors)


@dataclass(frozen=True)
class _Course:
    """A trace of one number of rows, with the answers about that number that it relies on."""

    trace: Trace
    shapes: ShapeEnv
    answers: guards.RecordedGuards

    def operators(self) -> list[Any]:
        """Equal for two traces that compute the same for any number of rows."""
        symbol = self.trace.symbol

        def said(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.dtype, [*map(said, value.shape)]
            if isinstance(value, torch.SymInt):
                return str(value.node.expr.subs(symbol, sympy.Symbol("rows")))
            return value if isinstance(value, int) else None

        return [
            (node.name, repr((node.target, node.args, node.kwargs)), said(node.meta.get("val")))
            for node in self.trace.graph.graph.nodes
        ]


def trace(part: Part, training: bool, precision: torch.dtype | None, device: torch.device) -> Trace:
    """precision: of autocast; None for the model's own."""
    count = traced_batch_size(part)
    course = _trace(part, training, precision, device, count)

    def trace_alike(rows: int) -> tuple[Any, guards.RecordedGuards] | None:
        try:
            other = _trace(part, training, precision, device, rows, binding=False)
        except Exception:  # Whatever the model says to so few or so many rows.
            return None
        if other.operators() != course.operators():
            return None
        return other.trace.symbol, other.answers

    made = course.trace
    guards.check_dynamic_batch(course.shapes, made.symbol, count, course.answers, trace_alike)
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
) -> _Course:
    """count: of the batch's rows. binding: as of `guards.note`."""
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
    answers = guards.record(shapes, __file__, binding)
    mode = KernelStrides(shape_env=shapes, allow_non_fake_inputs=True)
    fakes = _fakes(part, mode, training, precision, count)
    symbol = fakes[-1].shape[0].node.expr
    with ExitStack() as stack:
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(in_mode(part.module, training))
        stack.enter_context(recurrent.patched())
        stack.enter_context(instance_norm.as_group_norm())
        stack.enter_context(decompositions.patched())
        stack.enter_context(torch_versions.without_tokens())
        stack.enter_context(node_lines.recorded(__file__))
        # Libraries ask before they look at values to warn or to take a short cut.
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            stack.enter_context(mock.patch.object(torch.compiler, flag, True))
        if not training:
            stack.enter_context(torch.no_grad())
            stack.enter_context(_whole_operators())
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
    return _Course(Trace(joint.graph_module, forward_outputs, symbol, device), shapes, answers)


class _Failing(TorchFunctionMode):
    """Knows which of PyTorch's functions raised an error first."""

    name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.name = self.name or func.__name__
            raise


def _failing_function(mode: FakeTensorMode, function: Any, fakes: tuple[torch.Tensor, ...]) -> str:
    """The name of what fails in forward, empty if nothing does."""
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
    """A batch that is not the size of anything else, for nothing to be taken for it."""
    taken = {size for entry in part.entries for size in entry.tensor.shape}
    taken |= {size for example in part.inputs.values() for size in example.shape[1:]}
    return next(rows for rows in (5, 7, 11, 13, *range(17, 1 << 20, 2)) if rows not in taken)


def _whole_operators() -> Any:
    """Keeps linear, conv2d and the like as one node each."""
    table, _ = _split_decomp_table_to_cia_and_python_decomp({})
    # PyTorch's shape rules of some losses return a number for every reduction.
    for operator in list(table):
        if "_loss" in operator.name() or operator in decompositions.RULES:
            del table[operator]
    return _override_composite_implicit_decomp(table)
