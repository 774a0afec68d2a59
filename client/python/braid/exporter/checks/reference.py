"""Reference results from eager mode, for comparison with a package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.checks import differences
from braid.exporter.model import rows, run_context
from braid.exporter.model.run_context import autocast
from braid.exporter.model.sizes import Sizes, sizes_suffix
from braid.exporter.model.state import contiguous_copy, run_state
from braid.exporter.trace.joint_graph import Part

SEED = 20
_NUDGES = (1, 2, 3)

Values = dict[str, torch.Tensor]


def output_key(name: str, training: bool) -> str:
    return f"output '{name}' in {'training' if training else 'evaluation'}"


def buffer_key(name: str) -> str:
    return f"buffer '{name}' after training"


def gradient_key(kind: str, name: str) -> str:
    return f"gradient of the {kind} '{name}'"


class ReferenceRun:
    """Repeatable eager runs of a part with one batch, cached.

    sizes: of the model's variable dims.
    inputs: in the model's own precision. Values are varied from the examples'; if forward fails
        with them, the run discards earlier results and uses the examples' own.
    """

    def __init__(self, part: Part, device: torch.device, batch: int, sizes: Sizes) -> None:
        self.part = part
        self.device = device
        self.batch = batch
        self._sizes = sizes
        self._examples = part.at(sizes)
        self.inputs = rows.vary_inputs(self._examples, batch)
        self._varied = True
        self._values: dict[tuple[bool, torch.dtype | None], Values] = {}
        self._nudged: list[Values] = []

    def __str__(self) -> str:
        return f"batch of {self.batch}{sizes_suffix(self._sizes)}"

    def evaluation(self, precision: torch.dtype | None) -> Values:
        """Returns the outputs by their names in messages."""
        return self._once((False, precision), lambda: self._evaluation(precision))

    def training(self, precision: torch.dtype | None) -> Values:
        """Returns outputs, updated buffers, and gradients for random output gradients."""
        return self._once((True, precision), lambda: self._training(precision))

    def rounding(self, what: str) -> float:
        """Returns the largest change of a training result when the last bits of the state change.

        Varied inputs change too. The examples' own do not: 3.0 may be a category.
        """
        if not self._nudged:
            try:
                self._nudged = [self._training(None, seed, self._varied) for seed in _NUDGES]
            except ExportError:  # For example, a probability became larger than 1.
                self._nudged = [self._training(None, seed) for seed in _NUDGES]
        exact = self.training(None)[what]
        return max((differences.difference(each[what], exact) for each in self._nudged), default=0.0)

    def _once(self, key: tuple[bool, torch.dtype | None], run: Callable[[], Values]) -> Values:
        if key not in self._values:
            try:
                self._values[key] = run()
            except ExportError:
                if not self._varied:
                    raise
                self._use_examples()
                self._values[key] = run()
        return self._values[key]

    def _use_examples(self) -> None:
        self.inputs = rows.repeat_inputs(self._examples, self.batch)
        self._varied = False
        self._values.clear()
        self._nudged.clear()

    def _evaluation(self, precision: torch.dtype | None) -> Values:
        state = run_state(self.part.entries)
        inputs = self.part.as_given(self.inputs, False, precision)
        with torch.no_grad():
            outputs = self._run(False, precision, state, inputs)
        return {output_key(name, False): tensor for name, tensor in zip(self.part.names, outputs)}

    def _training(
        self, precision: torch.dtype | None, nudge: int = 0, nudge_inputs: bool = False
    ) -> Values:
        state = run_state(self.part.entries, training=True)
        if nudge:
            state = {
                name: contiguous_copy(tensor).requires_grad_(tensor.requires_grad)
                for name, tensor in state.items()
            }
        leaves = {
            (kind, name): state[name]
            if kind == "parameter"
            else contiguous_copy(tensor).requires_grad_()
            for kind, name, tensor in self.differentiated(precision)
        }
        given = self.part.as_given(self.inputs, True, precision)
        inputs = {name: leaves.get(("input", name), each.clone()) for name, each in given.items()}
        if nudge:
            nudged = [*state.values(), *(inputs.values() if nudge_inputs else ())]
            with torch.no_grad():
                for place, tensor in enumerate(nudged):
                    differences.nudge(tensor, nudge * 1000 + place)
        with self.part.in_mode(True), ExitStack() as held:
            outputs = self._run(True, precision, state, inputs, held)
            named = dict(zip(self.part.names, outputs))
            values = {output_key(name, True): tensor.detach() for name, tensor in named.items()}
            roots = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
            gradients: tuple[torch.Tensor | None, ...] = (None,) * len(leaves)
            if roots and leaves:
                gradients = torch.autograd.grad(
                    list(roots.values()),
                    list(leaves.values()),
                    [self.output_gradient(name, tensor) for name, tensor in roots.items()],
                    allow_unused=True,
                )
        for entry in self.part.untied:
            if entry.kind == "buffer":
                values[buffer_key(entry.name)] = state[entry.name].detach()
        for (key, leaf), found in zip(leaves.items(), gradients):
            values[gradient_key(*key)] = torch.zeros_like(leaf) if found is None else found
        return values

    def differentiated(
        self, precision: torch.dtype | None
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yields what needs a gradient: kind, name and tensor."""
        for entry in self.part.untied:
            if entry.trainable:
                yield "parameter", entry.name, entry.tensor
        for name, tensor in self.part.as_given(self.inputs, True, precision).items():
            if self.part.input_gradients and tensor.is_floating_point():
                yield "input", name, tensor

    def output_gradient(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a random gradient for an output that depends only on its name and shape."""
        generator = torch.Generator().manual_seed(SEED + self.part.names.index(name))
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        return values.to(tensor.device, tensor.dtype)

    def _run(
        self,
        training: bool,
        precision: torch.dtype | None,
        state: dict[str, torch.Tensor],
        inputs: dict[str, torch.Tensor],
        held: ExitStack | None = None,
    ) -> list[torch.Tensor]:
        try:
            with run_context.seeded(self.device, SEED), self.part.in_mode(training):
                with autocast(self.device, precision):
                    return self.part.run(state, dict(inputs), held)
        except ExportError:
            raise
        except Exception as error:
            raise export_errors.model_error(f"forward() fails for a {self}", error) from error
