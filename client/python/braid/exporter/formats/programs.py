"""Programs of a pair: graphs whose inputs and outputs have a role, name, dtype and shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput, TangentAOTInput
from torch.export.exported_program import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from braid._export import ExportError
from braid.exporter import source
from braid.exporter.checks.operators import check_operator
from braid.exporter.formats import exported_program
from braid.exporter.model import rows, run_context
from braid.exporter.model.sizes import BATCH, VariableSizes
from braid.exporter.model.signature import DATATYPES
from braid.exporter.passes import default_dtype, embeddings, graph_utils, partition
from braid.exporter.passes.dropout import draw_factors
from braid.exporter.passes.simplify import simplify
from braid.exporter.passes.stacking import stack_gradients
from braid.exporter.trace import node_lines
from braid.exporter.trace.joint_graph import Part, Trace, traced_batch_size

_aten = torch.ops.aten


@dataclass(frozen=True)
class Slot:
    """Input or output of a graph.

    depends_on: for a gradient, the outputs whose gradients it is computed from.
    additive: for a gradient, True if the sum over a batch's chunks is the whole batch's gradient.
    """

    role: str
    name: str
    dtype: str
    shape: list[int | str]
    depends_on: list[str] | None = None
    additive: bool = True

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": self.role, "name": self.name}
        fields |= {"dtype": self.dtype, "shape": self.shape}
        if self.depends_on is not None:
            fields["depends_on"] = self.depends_on
        if not self.additive:
            fields["additive"] = False
        return fields


@dataclass(frozen=True)
class Program:
    graph: GraphModule
    inputs: list[Slot]
    outputs: list[Slot]
    symbols: Mapping[str, sympy.Symbol]
    variable: VariableSizes

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Returns the valid range of indices of each input that indexes embeddings."""
        by_placeholder = embeddings.index_ranges(self.graph)
        return {
            slot.name: by_placeholder[node.name]
            for slot, node in zip(self.inputs, graph_utils.placeholders(self.graph))
            if slot.role == "input" and node.name in by_placeholder
        }

    @cached_property
    def exported(self) -> ExportedProgram:
        """The graph as an ExportedProgram, with constants as inputs."""
        bounds = {
            symbol: self.variable.symbols.get(name) for name, symbol in self.symbols.items()
        }
        return exported_program.make(self.graph, bounds)


class _Namer:
    """Creates slots for nodes. Writes symbolic sizes with their names, for example "batch"."""

    def __init__(self, symbols: Mapping[str, sympy.Symbol]) -> None:
        self._names = {
            symbol: sympy.Symbol(name, integer=True) for name, symbol in symbols.items()
        }

    def slot(self, role: str, name: str, node: Node, depends_on: list[str] | None = None) -> Slot:
        value = node.meta["val"]
        dtype = DATATYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        shape = [self._size(size) for size in value.shape]
        return Slot(role, name, dtype, shape, depends_on)

    def _size(self, size: Any) -> int | str:
        if isinstance(size, int):
            return size
        expression = sympy.sympify(size.node.expr).subs(self._names)
        return int(expression) if expression.is_Integer else str(expression)


def evaluation(part: Part, trace: Trace) -> Program:
    """Returns the evaluation program of a trace."""
    graph = trace.graph
    origins = _origins(graph)
    _flatten(graph)
    # Drops buffer updates: evaluation does not use them.
    nodes = [
        node
        for node, origin in zip(graph_utils.outputs(graph), origins)
        if isinstance(origin, PlainAOTOutput)
    ]
    inputs = graph_utils.placeholders(graph)
    graph_utils.set_outputs(graph, _own(graph, nodes))
    simplify(graph)
    default_dtype.make_explicit(graph)
    check_operators(graph, trace.device)
    namer = _Namer(trace.symbols)
    outputs = [
        namer.slot("output", name, node)
        for name, node in zip(part.names, graph_utils.outputs(graph))
    ]
    for slot, node in zip(outputs, graph_utils.outputs(graph)):
        _check_output(slot, node, trace.symbols[BATCH])
    return Program(
        graph,
        [namer.slot(*role, node) for role, node in zip(_roles(part), inputs)],
        outputs,
        trace.symbols,
        part.variable,
    )


def _check_output(slot: Slot, node: Node, batch: sympy.Symbol) -> None:
    """Checks that the server can concatenate the output of several chunks.

    A tensor without dims is one number per chunk.
    """
    others = node.meta["val"].shape[1:]
    depends = any(
        isinstance(size, torch.SymInt) and batch in size.node.expr.free_symbols for size in others
    )
    if slot.shape and (slot.shape[0] != BATCH or depends):
        shape = ", ".join(map(str, slot.shape))
        raise ExportError(
            f"output '{slot.name}' has the shape [{shape}] (expected the batch as dim 0, and no "
            f"other dim that depends on it)"
        )
    if slot.dtype not in DATATYPES.values():
        raise ExportError(f"output '{slot.name}' has the unsupported dtype {slot.dtype}")


def training(
    part: Part, trace: Trace, precision: torch.dtype | None
) -> tuple[Program, Program | None]:
    """Returns the forward and backward programs; backward is None without gradients."""
    origins = _origins(trace.graph)
    tangents = {
        node.name: node.meta["desc"].output
        for node in graph_utils.placeholders(trace.graph)
        if isinstance(node.meta["desc"], TangentAOTInput)
    }
    _flatten(trace.graph)
    draw_factors(trace.graph)
    stack_gradients(trace.graph)
    simplify(trace.graph)
    default_dtype.make_explicit(trace.graph)
    roles = _roles(part)
    check_operators(trace.graph, trace.device)
    if tangents:
        forward, backward = partition.split(trace.graph, trace.forward_outputs)
        check_operators(backward, trace.device)
        _correct_dtypes(part, forward, backward, precision)
    else:
        forward, backward = trace.graph, None
    namer = _Namer(trace.symbols)
    known: dict[str, tuple[str, str]] = {}
    inputs = []
    for role, node in zip(roles, graph_utils.placeholders(forward)):
        known[node.name] = role
        inputs.append(namer.slot(*role, node))
    nodes = graph_utils.outputs(forward)
    own = _own(forward, nodes)
    graph_utils.set_outputs(forward, own)
    outputs = []
    for place, node in enumerate(own):
        role = (
            _role_of_output(part, roles, origins[place])
            if place < trace.forward_outputs
            else ("saved", node.name)
        )
        known.setdefault(node.name, role)
        outputs.append(namer.slot(*role, node))
    for name, origin in tangents.items():
        known[name] = ("output_gradient", part.names[_position(origin)])
    program = Program(forward, inputs, outputs, trace.symbols, part.variable)
    if backward is None:
        return program, None
    gradients = origins[trace.forward_outputs :]
    return program, _backward(part, backward, known, gradients, namer, trace.symbols)


def _correct_dtypes(
    part: Part, forward: GraphModule, backward: GraphModule, precision: torch.dtype | None
) -> None:
    """Corrects the dtypes of saved tensors to those of a real run.

    A trace reports wrong dtypes for some, for example batch norm's statistics in mixed precision.
    """
    given = [entry.contiguous() for entry in part.untied]
    examples = part.examples(True, precision).values()
    given += [rows.repeat_rows(example, traced_batch_size(part)) for example in examples]
    with torch.no_grad(), run_context.seeded(given[0].device, 0):
        values = forward(*given)
    taken = {node.name: node for node in graph_utils.placeholders(backward)}
    for node, value in zip(graph_utils.outputs(forward), values):
        if value is None:
            raise ExportError(f"{node.target} returns no tensor, but its trace has one")
        if node.meta["val"].dtype != value.dtype:
            node.meta["val"] = node.meta["val"].to(value.dtype)
            if node.name in taken:
                taken[node.name].meta["val"] = node.meta["val"]


def _backward(
    part: Part,
    graph: GraphModule,
    known: dict[str, tuple[str, str]],
    origins: list[Any],
    namer: _Namer,
    symbols: Mapping[str, sympy.Symbol],
) -> Program | None:
    inputs = [namer.slot(*known[node.name], node) for node in graph_utils.placeholders(graph)]
    reached = _reached(graph, known)
    scaled = _scaled_by_frequency(graph)
    roles = _roles(part)
    nodes, slots = [], []
    for node, origin in zip(graph_utils.outputs(graph), origins):
        if node is None or not reached[node]:
            continue
        role, name = roles[origin.grad_of.idx]
        if node.meta["val"].layout != torch.strided:
            raise ExportError(
                f"the gradient of the {role} '{name}' is sparse (expected a dense tensor)"
            )
        depends_on = [output for output in part.names if output in reached[node]]
        nodes.append(node)
        slot = namer.slot(f"{role}_gradient", name, node, depends_on)
        slots.append(replace(slot, additive=node not in scaled))
    if not nodes:
        return None
    graph_utils.set_outputs(graph, _own(graph, nodes))
    return Program(graph, inputs, slots, symbols, part.variable)


def _reached(graph: GraphModule, known: dict[str, tuple[str, str]]) -> dict[Node, frozenset[str]]:
    """Returns for each node the outputs whose gradients it is computed from."""
    reached: dict[Node, frozenset[str]] = {}
    for node in graph.graph.nodes:
        role, name = known.get(node.name, ("", "")) if node.op == "placeholder" else ("", "")
        own = frozenset([name]) if role == "output_gradient" else frozenset()
        reached[node] = own.union(*(reached[each] for each in node.all_input_nodes))
    return reached


def _scaled_by_frequency(graph: GraphModule) -> set[Node]:
    """Returns the nodes computed from an embedding gradient that uses scale_grad_by_freq."""
    scaled: set[Node] = set()
    for node in graph.graph.nodes:
        if _scales_by_frequency(node) or scaled.intersection(node.all_input_nodes):
            scaled.add(node)
    return scaled


def _scales_by_frequency(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return bool(given.get("scale_grad_by_freq", False))


def check_operators(graph: GraphModule, device: torch.device) -> None:
    """Raises ExportError if a server cannot run one of the graph's operators."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            check_operator(node.target, device, lambda: source.as_suffix(node_lines.line_of(node)))
            if node.target is torch.ops.higher_order.cond:
                for branch in node.args[1:3]:
                    _check_branch(getattr(graph, branch.target), node, device)


def _check_branch(branch: GraphModule, cond: Node, device: torch.device) -> None:
    check_operators(branch, device)
    for node in branch.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            # Backward runs the branch again, with other random numbers.
            raise ExportError(
                f"a branch of torch.cond calls the random operator {node.target} (draw random "
                f"numbers before torch.cond, and pass them as operands)"
                + source.as_suffix(node_lines.line_of(cond))
            )


def _origins(graph: GraphModule) -> list[Any]:
    return list(graph.graph.output_node().meta["desc"])


def _flatten(graph: GraphModule) -> None:
    graph.graph.set_codegen(CodeGen())
    flat = pytree.tree_leaves(graph.graph.output_node().args, is_leaf=lambda each: each is None)
    graph.graph.output_node().args = (tuple(flat),)


def _roles(part: Part) -> list[tuple[str, str]]:
    """Returns role and name of the graph's inputs, except output gradients."""
    state = [(entry.kind, entry.name) for entry in part.untied]
    return state + [("input", name) for name in part.inputs]


def _role_of_output(part: Part, roles: list[tuple[str, str]], origin: Any) -> tuple[str, str]:
    if isinstance(origin, PlainAOTOutput):
        return "output", part.names[origin.idx]
    role, name = roles[origin.mutated_input.idx]
    if role != "buffer":
        raise ExportError(f"forward() writes to the {role} '{name}'")
    return "new_buffer", name


def _position(origin: Any) -> int:
    if not isinstance(origin, PlainAOTOutput):
        raise ExportError(
            "forward() updates a buffer with a value that has a gradient (detach the value)"
        )
    return origin.idx


def _own(graph: GraphModule, nodes: list[Node]) -> list[Node]:
    """Returns the outputs, with a copy for each that is an input or occurs twice."""
    own: list[Node] = []
    for node in nodes:
        if node.op == "placeholder" or node in own:
            with graph.graph.inserting_before(graph.graph.output_node()):
                copied = graph.graph.call_function(_aten.clone.default, (node,))
            copied.meta["val"] = node.meta["val"]
            node = copied
        own.append(node)
    return own
