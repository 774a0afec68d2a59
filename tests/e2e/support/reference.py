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



def focal(
    output: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    gamma: float = 2.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss of class indices. With gamma 0 it is cross_entropy."""
    cross_entropy = functional.cross_entropy(
        output, target, ignore_index=ignore_index, reduction="none"
    )
    weights = torch.ones(output.size(1), dtype=output.dtype) if weight is None else weight
    counted = target != ignore_index
    weights = torch.where(counted, weights[torch.where(counted, target, 0)], 0.0)
    total = (weights * (1 - (-cross_entropy).exp()) ** gamma * cross_entropy).sum()
    return total / weights.sum() if reduction == "mean" else total


def dice(
    output: Tensor,
    target: Tensor,
    smooth: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Soft Dice loss of each row and class: of class indices, or of masks."""
    if target.is_floating_point():
        p, t = output.sigmoid(), target
    else:
        counted = (target != ignore_index).unsqueeze(1)
        indices = torch.where(counted.squeeze(1), target, 0)
        one_hot = functional.one_hot(indices, output.size(1)).movedim(-1, 1)
        p, t = output.softmax(1) * counted, one_hot.to(output.dtype) * counted
    overlap, total = (p * t).flatten(2).sum(2), p.flatten(2).sum(2) + t.flatten(2).sum(2)
    losses = 1 - (2 * overlap + smooth) / (total + smooth)
    return losses.mean() if reduction == "mean" else losses.sum()


def _sigmoid_focal(*tensors: Tensor, reduction: str = "mean", **parameters: float) -> Tensor:
    from torchvision import ops

    return ops.sigmoid_focal_loss(*tensors, reduction=reduction, **parameters)


def _ctc(
    output: Tensor,
    target: Tensor,
    target_lengths: Tensor,
    input_lengths: Tensor | None = None,
    **parameters: object,
) -> Tensor:
    if input_lengths is None:
        input_lengths = torch.full((output.size(0),), output.size(1))
    return functional.ctc_loss(
        output.transpose(0, 1), target, input_lengths, target_lengths, **parameters
    )


_LOSSES = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
    "kl_div": functional.kl_div,
    "poisson_nll": functional.poisson_nll_loss,
    "gaussian_nll": lambda mean, variance, target, **parameters: functional.gaussian_nll_loss(
        mean, target, variance, **parameters
    ),
    "focal": focal,
    "sigmoid_focal": _sigmoid_focal,
    "dice": dice,
    "cosine_embedding": functional.cosine_embedding_loss,
    "triplet_margin": functional.triplet_margin_loss,
    "ctc": _ctc,
}
# Keys that do not belong to PyTorch's function.
_BINDING = ("factor", "output", "outputs", "target", "target_lengths", "input_lengths")


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
        self.objective = losses if callable(losses) else objective_of(losses)
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


def loss_of(spec: str | dict, *tensors: Tensor) -> Tensor:
    """Computes one loss of its outputs and targets, without its factor."""
    parameters = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = parameters.pop("name")
    for key in _BINDING:
        parameters.pop(key, None)
    for key in ("weight", "pos_weight"):
        if key in parameters:
            parameters[key] = torch.tensor(parameters[key], dtype=tensors[0].dtype)
    return _LOSSES[name](*tensors, **parameters)


def _tensors_of(spec: dict, outputs: Tensors, targets: Tensors) -> list[Tensor]:
    """Returns the outputs that a loss takes, followed by its targets."""
    of_loss = [outputs[name] for name in spec.get("outputs", ())]
    if not of_loss:
        of_loss = [outputs[spec.get("output", next(iter(outputs)))]]
    if spec.get("name") == "triplet_margin":
        return of_loss
    names = [spec.get("target", "target")]
    if spec.get("name") == "ctc":
        names.append(spec.get("target_lengths", "target_lengths"))
        names += [spec["input_lengths"]] if "input_lengths" in spec else []
    return of_loss + [targets[name] for name in names]


def objective_of(losses: str | dict | list) -> Objective:
    specs = losses if isinstance(losses, list) else [losses]

    def whole(outputs: Tensors, targets: Tensors) -> Tensor:
        total = torch.zeros(())
        for spec in specs:
            own = {} if isinstance(spec, str) else spec
            value = loss_of(spec, *_tensors_of(own, outputs, targets))
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
