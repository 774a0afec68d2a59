"""Reference training in plain PyTorch on one thread, for comparison with the server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from e2e.support import models
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, RandomSampler

# Model → (shape of an input's row, classes).
DATA = {
    "chain": ((10,), 5),
    "mlp": ((784,), 10),
    "smooth": ((784,), 10),
    "convnet": ((1, 28, 28), 10),
}
_MASK = (1 << 64) - 1
LOSSES = {"cross_entropy": functional.cross_entropy, "mse": functional.mse_loss}


@dataclass(frozen=True)
class Run:
    """losses: the loss of each step before its update. state: final parameters and buffers."""

    losses: list[float]
    state: dict[str, np.ndarray]


def make_optimizer(module: nn.Module, spec: dict) -> torch.optim.Optimizer:
    """Returns the optimizer of `spec`, which has the form that the Braid client takes."""
    parameters = {key: value for key, value in spec.items() if key != "name"}
    return getattr(torch.optim, spec["name"])(module.parameters(), **parameters)


def state_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in module.state_dict().items()}


def forward_in_chunks(module: nn.Module, x: Tensor, replicas: int) -> Tensor:
    """Returns the joint outputs of `replicas` replicas. Each sees only its chunk. The buffers are
    those that the first replica leaves."""
    chunks = torch.chunk(x, replicas)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    outputs = [module(chunks[0])]
    for chunk in chunks[1:]:
        copies = {name: buffer.clone() for name, buffer in before.items()}
        outputs.append(torch.func.functional_call(module, copies, (chunk,)))
    return torch.cat(outputs)


def _finalize(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix_seed(seed: int, stream: int) -> int:
    """Mirrors server/base/random_seed.h."""
    return _finalize(_finalize(seed) ^ stream)


def seeded_forward_in_chunks(
    forward: Callable[..., Tensor],
    inputs: dict[str, Tensor],
    replicas: int,
    seed: int,
    step: int,
    stage: int = 0,
) -> Tensor:
    """Returns the concatenated outputs of forward(**chunk) for each replica's chunk.

    Seeds PyTorch's generator like the server does for each chunk of each step, so models with
    dropout can be compared exactly.

    seed: of the trainer. step: the number of the operation. stage: the number of the stage.
    """
    names = list(inputs)
    outputs, row = [], 0
    with torch.random.fork_rng():
        for chunk in zip(*(torch.chunk(value, replicas) for value in inputs.values())):
            # Mixes the operation, the stage and the first row of the chunk.
            torch.manual_seed(mix_seed(mix_seed(mix_seed(seed, step), stage), row))
            outputs.append(forward(**dict(zip(names, chunk))))
            row += len(chunk[0])
    return torch.cat(outputs)


def train(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: dict,
    loss: str,
    replicas: int = 1,
) -> Run:
    """Runs one step per batch in training mode, chunk by chunk as on `replicas` replicas."""
    module.train()
    stepper = make_optimizer(module, optimizer)
    losses = []
    for x, target in batches:
        value = LOSSES[loss](forward_in_chunks(module, x, replicas), target)
        stepper.zero_grad()
        value.backward()
        stepper.step()
        losses.append(value.item())
    return Run(losses, state_of(module))


def dataset(model: str, rows: int = 1000) -> tuple[Tensor, Tensor]:
    """Returns fixed inputs for `model` and class indices that can be learned from them."""
    generator = torch.Generator().manual_seed(7)
    shape, classes = DATA[model.removesuffix("64")]
    x = torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
    teacher = torch.randn(x[0].numel(), classes, generator=generator, dtype=torch.float64)
    labels = (x.flatten(1) @ teacher).argmax(1)
    return x.to(torch.float64 if model.endswith("64") else torch.float32), labels


def batches_of(model: str, loss: str, rows: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields `steps` batches of `rows` rows, sampled again for every pass over the dataset."""
    x, labels = dataset(model)
    target = labels
    if loss == "mse":
        target = functional.one_hot(labels).to(x.dtype)
    generator = torch.Generator().manual_seed(rows)
    sampler = RandomSampler(x, num_samples=steps * rows, replacement=True, generator=generator)
    for index in BatchSampler(sampler, rows, drop_last=False):
        yield x[index], target[index]


@functools.cache
def reference(
    model: str, optimizer: tuple, loss: str, rows: int, steps: int, replicas: int = 1
) -> Run:
    """Returns `train` on `batches_of`, cached. optimizer: the items of the spec."""
    batches = batches_of(model, loss, rows, steps)
    return train(models.make(model), batches, dict(optimizer), loss, replicas)


def assert_equal_runs(actual: Run, wanted: Run, tolerance: float) -> None:
    """Checks that losses and state differ by at most `tolerance` (absolute)."""
    np.testing.assert_allclose(actual.losses, wanted.losses, rtol=0, atol=tolerance)
    assert actual.state.keys() == wanted.state.keys()
    for name, value in wanted.state.items():
        assert actual.state[name].dtype == value.dtype
        np.testing.assert_allclose(
            actual.state[name], value, rtol=0, atol=tolerance, err_msg=name
        )
