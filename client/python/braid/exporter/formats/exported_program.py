"""Conversion of a flat, stateless graph into an ExportedProgram that can be packaged."""

from __future__ import annotations

import keyword
from collections.abc import Mapping

import sympy
import torch
from torch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from braid.exporter.model.sizes import Symbol
from braid.exporter.passes import graph_utils


def make(module: GraphModule, bounds: Mapping[sympy.Symbol, Symbol | None]) -> ExportedProgram:
    """Wraps the graph as torch.export would, without tracing it again.

    Node metadata is dropped except for values, so the package contains no source paths.

    bounds: of each symbolic size; None: any size.
    """
    _clean(module)
    branches = graph_utils.branches(module)
    constants = _lift_constants(module)
    inputs = [
        InputSpec(
            InputKind.CONSTANT_TENSOR if node.name in constants else InputKind.USER_INPUT,
            TensorArgument(name=node.name),
            node.name if node.name in constants else None,
        )
        for node in graph_utils.placeholders(module)
    ]
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None)
        for node in graph_utils.outputs(module)
    ]
    arguments = tuple(0 for spec in inputs if spec.kind == InputKind.USER_INPUT)
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure((arguments, {})),
        out_spec=pytree.tree_structure(tuple(0 for _ in outputs)),
    )
    return ExportedProgram(
        root=branches,
        graph=module.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints={symbol: _range(each) for symbol, each in bounds.items()},
        module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
        constants=constants,
    )


def _clean(module: GraphModule) -> None:
    for node in module.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key == "val"}
        if node.target is torch.ops.higher_order.cond:
            # PyTorch's writer takes no list, which a gradient of torch.cond returns.
            node.meta["val"] = tuple(node.meta["val"])
    _give_keywords(module)
    for branch in graph_utils.branches(module).values():
        graph_utils.set_outputs(branch, graph_utils.outputs(branch))
        _clean(branch)


def _range(bounds: Symbol | None) -> ValueRanges:
    if bounds is None:
        return ValueRanges(1, int_oo)
    return ValueRanges(bounds.min, int_oo if bounds.max is None else bounds.max)


def _give_keywords(module: GraphModule) -> None:
    """Writes out defaults of arguments named like a Python keyword, for example `from`.

    PyTorch's reader passes such arguments by position.
    """
    for node in module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        arguments = schema.arguments if schema is not None else []
        words = [n for n, each in enumerate(arguments) if keyword.iskeyword(each.name)]
        missing = arguments[len(node.args) : words[-1] + 1] if words else []
        node.args += tuple(each.default_value for each in missing)


def _lift_constants(module: GraphModule) -> dict[str, torch.Tensor]:
    """Turns the tensors that the graph holds into its first inputs."""
    branches = graph_utils.branches(module)
    constants: dict[str, torch.Tensor] = {}
    first = next(iter(module.graph.nodes))
    by_target: dict[str, Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "get_attr" or node.target in branches:
            continue
        if node.target not in by_target:
            value = getattr(module, node.target)
            with module.graph.inserting_before(first):
                made = module.graph.placeholder(f"constant_{len(constants)}")
            made.meta["val"] = node.meta["val"]
            constants[made.name] = value.detach().clone()
            by_target[node.target] = made
        node.replace_all_uses_with(by_target[node.target])
        module.graph.erase_node(node)
    return constants
