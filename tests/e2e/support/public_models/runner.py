"""Exports a public model, serves and trains it on a server, and compares each with PyTorch."""

from __future__ import annotations


import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import braid
import numpy as np
import torch
from e2e.support import long_training, oracle, training
from e2e.support.oracle import Run
from e2e.support.public_models.entry import Entry
from e2e.support.reference import Batch, by_name, objective_of
from e2e.support.server import ROOT, Server
from torch import Tensor, nn

STEPS = 20
REPLICAS = (1, 3)
# Not divisible by 3.
TRAINING_ROWS = 7
INFERENCE_ROWS = (1, 5, 40)

EQUAL, DIFFERENT, REFUSED, FAILED = "equal", "different", "refused", "failed"


@dataclass
class Result:
    """Result of one model.

    format: of the package; empty if no format was possible.
    result: EQUAL, DIFFERENT, REFUSED (no pair) or FAILED (an error that is none of a refusal).
    reason: why there is no pair, or the error.
    losses: PyTorch's first and last loss.
    inference, training: largest differences, of training by the number of replicas.
    """

    name: str
    result: str = FAILED
    format: str = ""
    reason: str = ""
    losses: list[float] = field(default_factory=list)
    inference: float | None = None
    training: dict[str, float] = field(default_factory=dict)
    export_seconds: float = 0.0
    seconds: float = 0.0
    torch_version: str = torch.__version__.partition("+")[0]

    def to_json(self) -> dict:
        return asdict(self)


def run(entry: Entry, directory: Path) -> Result:
    """directory: for the model repository and the server's files."""
    result = Result(entry.name)
    began = time.monotonic()
    try:
        _export(entry, directory / "models", result)
        result.export_seconds = round(time.monotonic() - began, 1)
        if result.format:
            _compare(entry, directory, result)
    except (braid.BraidError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        result.reason = f"{type(error).__name__}: {error}"
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _export(entry: Entry, repository: Path, result: Result) -> None:
    """Writes a pair, or else a TorchScript module."""
    inputs, _ = entry.batch(0, 4)
    path = repository / entry.name
    with warnings.catch_warnings():
        # PyTorch deprecates TorchScript.
        warnings.simplefilter("ignore")
        try:
            made = braid.export(
                entry.module(), inputs, path, precisions=[], dynamic=entry.dynamic
            )
        except (braid.ExportError, ValueError) as error:
            result.result, result.reason = REFUSED, _without_root(str(error))
            return
    result.format = made.format
    result.reason = _without_root(made.reason)


def _without_root(text: str) -> str:
    """Removes the folder of the repository from the names of files."""
    return text.replace(f"{ROOT}/", "")


def _compare(entry: Entry, directory: Path, result: Result) -> None:
    wanted = in_pytorch(entry)
    result.losses = [wanted.losses[0], wanted.losses[-1]]
    server = Server(
        directory / "models", "cpu*3", directory / "run", ("--cpu_threads=1",), data=False
    )
    with server, braid.connect(server.address, timeout=600) as client:
        result.inference = _inference_difference(entry, client)
        for replicas in REPLICAS:
            actual = _on_server(entry, client, replicas)
            result.training[str(replicas)] = _difference_of_runs(actual, wanted)
    largest = max(result.inference, *result.training.values())
    # NaN is not equal.
    equal = largest <= entry.tolerance and all(np.isfinite(wanted.losses))
    learned = abs(wanted.losses[-1] - wanted.losses[0]) > 1e-4 * abs(wanted.losses[0])
    if equal and not learned:
        raise AssertionError("PyTorch's loss does not change, so equality proves nothing")
    result.result = EQUAL if equal else DIFFERENT


def _inference_difference(entry: Entry, client: braid.Client) -> float:
    module = entry.module().eval()
    differences = []
    for number in range(len(entry.sizes)):
        for rows in INFERENCE_ROWS:
            inputs, _ = entry.batch(number, rows)
            with torch.no_grad():
                wanted = _outputs(module, inputs)
            actual = client.infer(entry.name, inputs)
            assert actual.keys() == wanted.keys(), f"{[*actual]}, not {[*wanted]}"
            for name, value in wanted.items():
                # The server adds a dim to an output without dims.
                shape = value.shape or (1,)
                differences.append(_difference(actual[name], value.reshape(shape).numpy()))
    return max(differences)


def _outputs(module: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return by_name(module(**inputs))


def in_pytorch(entry: Entry) -> Run:
    """Trains with plain PyTorch, over the whole batch."""
    module = entry.module()
    if entry.loss_mode == "model":
        objective = lambda outputs, _: outputs[entry.loss["output"]].mean()  # noqa: E731
    else:
        objective = objective_of(entry.loss)

    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        inputs, targets = batch
        return objective(_outputs(module, inputs), targets)

    return long_training.in_pytorch(module, _batches(entry), entry.optimizer, loss)


def _on_server(entry: Entry, client: braid.Client, replicas: int) -> Run:
    norms = nn.modules.batchnorm._BatchNorm
    return long_training.on_server(
        client,
        entry.name,
        _batches(entry),
        loss=entry.loss,
        loss_mode=entry.loss_mode,
        optimizer=entry.optimizer,
        stages=training.on(replicas),
        sync_batch_norm=any(isinstance(each, norms) for each in entry.module().modules()),
    )


def _batches(entry: Entry) -> list[Batch]:
    return [entry.batch(step, TRAINING_ROWS) for step in range(STEPS)]


def _difference_of_runs(actual: Run, wanted: Run) -> float:
    """Returns the largest difference of losses, parameters and buffers."""
    missing = wanted.state.keys() ^ actual.state.keys()
    assert not missing, f"state of only one side: {sorted(missing)}"
    pairs = [(np.array(actual.losses), np.array(wanted.losses))]
    pairs += [(actual.state[name], value) for name, value in wanted.state.items()]
    return max(_difference(one, other) for one, other in pairs)


def _difference(actual: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the largest difference, relative to values above 1. Infinite for other shapes."""
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return float("inf")
    if not wanted.size:
        return 0.0
    scale = np.maximum(np.abs(wanted.astype(np.float64)), 1)
    difference = np.abs(actual.astype(np.float64) - wanted.astype(np.float64)) / scale
    return float(np.where(np.isnan(difference), np.inf, difference).max())
