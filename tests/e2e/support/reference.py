"""Reference training in plain PyTorch on one device, step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import torch
from e2e.support import oracle, training_models
from e2e.support.oracle import Run
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer, lr_scheduler

Tensors = dict[str, Tensor]
Objective = Callable[[Tensors, Tensors], Tensor]
Batch = tuple[Tensors, Tensors]

_LOSSES = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
    "kl_div": functional.kl_div,
}


class Reference:
    """A model of `training_models` in training.

    optimizer, losses, groups, schedule: in the form of `Client.create_trainer`.
    losses may also be a function of outputs and targets, both by name.
    """

    def __init__(
        self,
        model: str,
        optimizer: dict,
        losses: str | dict | list | Objective,
        groups: Sequence[dict] = (),
        schedule: dict | None = None,
    ) -> None:
        self.module = training_models.make(model).train()
        self.objective = losses if callable(losses) else _objective(losses)
        self.stepper = make_optimizer(self.module, optimizer, groups)
        self.scheduler = None if schedule is None else _make_scheduler(self.stepper, schedule)

    def outputs(self, inputs: Tensors) -> Tensors:
        return by_name(self.module(*inputs.values()))

    def accumulate(self, inputs: Tensors, targets: Tensors) -> float:
        loss = self.objective(self.outputs(inputs), targets)
        loss.backward()
        return loss.item()

    def update(self, metric: float | None = None) -> None:
        """metric: the value that a plateau schedule observes."""
        self.stepper.step()
        self.stepper.zero_grad()
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(metric)
        elif self.scheduler is not None:
            self.scheduler.step()

    def step(self, inputs: Tensors, targets: Tensors) -> float:
        loss = self.accumulate(inputs, targets)
        self.update(loss)
        return loss

    def train(self, batches: Iterable[Batch]) -> Run:
        return Run([self.step(*batch) for batch in batches], self.state())

    def state(self) -> dict:
        return oracle.state_of(self.module)


def by_name(value: Tensor | tuple | dict, path: str = "") -> Tensors:
    """Returns outputs under the names that the server gives them."""
    if isinstance(value, Tensor):
        return {path or "output__0": value}
    if isinstance(value, tuple) and not path:
        return {f"output__{i}": each for i, each in enumerate(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    named: Tensors = {}
    for key, each in items:
        named |= by_name(each, f"{path}.{key}" if path else str(key))
    return named


def make_optimizer(module: nn.Module, spec: dict, groups: Sequence[dict] = ()) -> Optimizer:
    """Makes the server's optimizer: a parameter is in the first group whose pattern matches it."""
    members: list[list[nn.Parameter]] = [[] for _ in range(len(groups) + 1)]
    for name, parameter in module.named_parameters():
        fitting = (g for g, group in enumerate(groups) if re.search(group["pattern"], name))
        members[next(fitting, -1) + 1].append(parameter)
    of_torch = [{"params": members[0]}]
    for group, parameters in zip(groups, members[1:]):
        if group.get("frozen"):
            for parameter in parameters:
                parameter.requires_grad_(False)
        own = {key: value for key, value in group.items() if key not in ("pattern", "frozen")}
        of_torch.append({"params": parameters, **own})
    parameters = {key: value for key, value in spec.items() if key != "name"}
    return getattr(torch.optim, spec["name"])(of_torch, **parameters)


def loss_of(spec: str | dict, output: Tensor, target: Tensor) -> Tensor:
    """Computes one loss without its factor."""
    parameters = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = parameters.pop("name")
    for key in ("factor", "output", "target"):
        parameters.pop(key, None)
    for key in ("weight", "pos_weight"):
        if key in parameters:
            parameters[key] = torch.tensor(parameters[key], dtype=output.dtype)
    return _LOSSES[name](output, target, **parameters)


def _objective(losses: str | dict | list) -> Objective:
    specs = losses if isinstance(losses, list) else [losses]

    def whole(outputs: Tensors, targets: Tensors) -> Tensor:
        total = torch.zeros(())
        for spec in specs:
            own = {} if isinstance(spec, str) else spec
            output = outputs[own.get("output", next(iter(outputs)))]
            value = loss_of(spec, output, targets[own.get("target", "target")])
            total = total + own.get("factor", 1.0) * value
        return total

    return whole


def _make_scheduler(stepper: Optimizer, spec: dict) -> object:
    parameters = dict(spec)
    name, warmup = parameters.pop("name", None), parameters.pop("warmup", None)
    if warmup is None:
        return getattr(lr_scheduler, name)(stepper, **parameters)
    warm = lr_scheduler.LinearLR(
        stepper, start_factor=warmup.get("start_factor", 1 / 3), total_iters=warmup["steps"]
    )
    if name is None:
        return warm
    kind = getattr(lr_scheduler, name)(stepper, **parameters)
    return lr_scheduler.SequentialLR(stepper, [warm, kind], milestones=[warmup["steps"]])
