"""Small modules like a user may write them. `braid.export` chooses the format.

Half of them mix the rows of a batch. Others have several dims, or return unusual structures. The
exported model must answer each request like the module, however requests are merged and split.
`differences` compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import braid
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Numbers of rows of concurrent requests. The largest is split if the model allows it.
REQUESTS = (1, 2, 3, 5, 2, 1, 64, 4, 2, 3, 1, 7, 2, 300, 3, 1) * 3
CLIENTS = 16
RTOL, ATOL = 1e-4, 1e-5

Draw = Callable[[int, torch.Generator], Tensor]


class Small(nn.Module):
    """Layers for a function to use. Positional arguments are the inputs."""

    def __init__(self, function: Callable[..., Any], inputs: int) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.narrow = nn.Linear(4, 1)
        self.words = nn.Embedding(9, 4)
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.line = nn.Conv1d(1, 1, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.free_norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.layer_norm = nn.LayerNorm(4)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.sequence_gru = nn.GRU(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.sequence_attention = nn.MultiheadAttention(4, 2)
        self.gate = nn.Parameter(torch.zeros(()))
        self.center = nn.Parameter(torch.zeros(4))
        self.inputs = inputs

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.function(self, x) if self.inputs == 1 else self.function(self, x, y)


class Branches(nn.Module):
    """Scripted. Branches on the sum of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return self.linear(x)
        return -self.linear(x)


class CentersLargeBatches(nn.Module):
    """Scripted. Reads the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 6:
            x = x - x.mean(0)
        return self.linear(x)


class Iterates(nn.Module):
    """Scripted. Iterates until all rows have converged."""

    def forward(self, x: Tensor) -> Tensor:
        steps = 0
        while bool(x.abs().max() > 0.1) and steps < 20:
            x = 0.8 * x
            steps += 1
        return x


class DecidesByRow(nn.Module):
    """Scripted. Its control flow does not depend on values of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.linear.weight.shape[0])):
            x = torch.where(x > 0, self.linear(x), x)
        return x


def numbers(*row: int) -> Draw:
    return lambda count, generator: torch.randn(count, *row, generator=generator)


def integers(most: int, *row: int) -> Draw:
    return lambda count, generator: torch.randint(most, (count, *row), generator=generator)


def flags(*row: int) -> Draw:
    return lambda count, generator: torch.rand(count, *row, generator=generator) > 0.4


@dataclass(frozen=True)
class Case:
    """across: True if an output row depends on other rows, or has no row dimension."""

    make: Callable[[], nn.Module]
    draws: tuple[Draw, ...]
    across: bool

    def batch(self, count: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return dict(zip("xy", (draw(count, generator) for draw in self.draws)))


def _case(function: Callable[..., Any], *draws: Draw, across: bool) -> Case:
    draws = draws or (numbers(4),)
    return Case(lambda: Small(function, len(draws)), draws, across)


def _alone(function: Callable[..., Any], *draws: Draw) -> Case:
    return _case(function, *draws, across=False)


def _across(function: Callable[..., Any], *draws: Draw) -> Case:
    return _case(function, *draws, across=True)


CASES: dict[str, Case] = {
    # Mix rows.
    "scaled_by_std": _across(lambda m, x: m.linear(x) / (1 + x.std(0, correction=0).sum())),
    "gram": _across(lambda m, x: x @ x.t()),
    "gram_of_layer": _across(lambda m, x: torch.cdist(m.linear(x), x)),
    "hidden_mean": _across(lambda m, x: x + m.gate * x.mean(0)),
    "maximum_beside": _across(
        lambda m, x: torch.cat([m.linear(x), m.linear(x).amax(0, keepdim=True).expand_as(x)], 1)
    ),
    "cumulative": _across(lambda m, x: m.linear(x).cumsum(0)),
    "sorted": _across(lambda m, x: x.sort(0).values),
    "flipped": _across(lambda m, x: m.linear(x).flip(0)),
    "rolled": _across(lambda m, x: x + 0.5 * x.roll(1, 0)),
    "softmax_of_rows": _across(lambda m, x: m.linear(x).softmax(0)),
    "normalized_columns": _across(lambda m, x: F.normalize(x, dim=0)),
    "norm_of_all": _across(lambda m, x: x / x.norm()),
    "batch_statistics": _across(lambda m, x: m.free_norm(torch.cat([x, x + 1]))[: x.shape[0]]),
    "attends_to_rows": _across(lambda m, x: (x @ x.t()).softmax(1) @ m.linear(x)),
    "sequence_first": _across(lambda m, x: m.sequence_attention(x, x, x)[0], numbers(3, 4)),
    "recurrent_over_rows": _across(lambda m, x: m.sequence_gru(x)[0], numbers(3, 4)),
    "by_rank": _across(lambda m, x: x.argsort(0).argsort(0)),
    "less_the_first": _across(lambda m, x: m.linear(x) - x[:1]),
    "less_the_last": _across(lambda m, x: x - m.linear(x)[-1:]),
    "over_the_count": _across(lambda m, x: m.linear(x) / x.shape[0]),
    "by_place": _across(lambda m, x: m.linear(x) + torch.arange(x.shape[0])[:, None]),
    "hides_nan": _across(lambda m, x: m.linear(x) + x.nan_to_num().clamp(-1, 1).mean(0)),
    "fills_with_the_mean": _across(
        lambda m, x: m.linear(torch.where(x > 1, x.mean(0, keepdim=True), x))
    ),
    "clips_to_the_median": _across(lambda m, x: torch.minimum(x, x.median(0).values + 0.5)),
    "convolves_along_rows": _across(lambda m, x: m.line(x[:, 0][None, None])[0, 0][:, None] + x),
    "words_less_their_mean": _across(lambda m, x: m.words(x) - m.words(x).mean(0), integers(9)),
    "longest_in_batch": _across(lambda m, x: x.cumsum(1) * x.sum(1).amax(), integers(5, 3)),
    "transposed": _across(lambda m, x: m.linear(x).t()),
    "mean_of_rows": _across(lambda m, x: m.linear(x).mean(0)),
    "number_beside_rows": _across(lambda m, x: {"y": m.linear(x), "total": x.sum()}),
    "number_of_the_model": _across(lambda m, x: (m.linear(x), m.linear.weight.sum())),
    "parameter_beside_rows": _across(lambda m, x: [m.linear(x), m.linear.weight]),
    "only_a_number": _across(lambda m, x: m.linear(x).square().mean()),
    "two_inputs_matched": _across(lambda m, x, y: x @ y.t(), numbers(4), numbers(4)),
    "mask_of_the_batch": _across(
        lambda m, x, y: x * y[:, None] - (x * y[:, None]).mean(0), numbers(4), flags()
    ),
    "branches": Case(Branches, (numbers(4),), across=True),
    "centers_large_batches": Case(CentersLargeBatches, (numbers(4),), across=True),
    "iterates": Case(Iterates, (numbers(4),), across=True),
    "images_less_their_mean": _across(lambda m, x: m.conv(x - x.mean(0)), numbers(2, 5, 5)),
    # Do not mix rows.
    "layer": _alone(lambda m, x: m.linear(x)),
    "batch_norm": _alone(lambda m, x: m.norm(m.linear(x))),
    "layer_norm": _alone(lambda m, x: m.layer_norm(x)),
    "images": _alone(lambda m, x: m.conv(x).relu(), numbers(2, 5, 5)),
    "images_pooled": _alone(lambda m, x: m.conv(x).flatten(2).amax(2), numbers(2, 5, 5)),
    "instance_normed": _alone(lambda m, x: F.instance_norm(m.conv(x)), numbers(2, 5, 5)),
    "five_dims": _alone(lambda m, x: m.linear(x).transpose(1, 3).sum(2), numbers(2, 3, 2, 4)),
    "row_attention": _alone(lambda m, x: m.attention(x, x, x)[0], numbers(3, 4)),
    "row_recurrence": _alone(lambda m, x: m.gru(x)[0][:, -1], numbers(3, 4)),
    "words": _alone(lambda m, x: m.words(x), integers(9)),
    "sentences": _alone(lambda m, x: m.words(x).mean(1), integers(9, 3)),
    "words_and_weights": _alone(
        lambda m, x, y: (m.words(x) * y[..., None]).sum(1), integers(9, 3), numbers(3)
    ),
    "one_number_each": _alone(lambda m, x: m.narrow(x).squeeze(1)),
    "one_number_in": _alone(lambda m, x: m.linear(x[:, None].expand(-1, 4)), numbers()),
    "row_gram": _alone(lambda m, x: x[:, :, None] * x[:, None, :]),
    "row_softmax": _alone(lambda m, x: m.linear(x).softmax(1)),
    "row_sorted": _alone(lambda m, x: x.sort(1)),
    "row_cumulative": _alone(lambda m, x: x.cumsum(1)),
    "classes": _alone(lambda m, x: m.linear(x).argmax(1)),
    "decisions": _alone(lambda m, x: (m.linear(x) > 0, x > x.mean(1, keepdim=True))),
    "nested": _alone(lambda m, x: {"a": [m.linear(x), {"b": x * 2}], "c": (x.sum(1), x)}),
    "twice_the_same": _alone(lambda m, x: (lambda y: (y, y, y.view(-1, 2, 2)))(m.linear(x))),
    "its_input": _alone(lambda m, x: [x, m.linear(x)]),
    "expanded": _alone(lambda m, x: m.narrow(x).expand(-1, 3)),
    "constant_rows": _alone(lambda m, x: (m.linear(x), m.center.expand(x.shape[0], 4))),
    "strided": _alone(lambda m, x: m.linear(x)[:, ::2]),
    "sines": _alone(lambda m, x: (20 * m.linear(x)).sin()),
    "no_columns": _alone(lambda m, x: (m.linear(x), x[:, :0])),
    "masked": _alone(lambda m, x, y: m.linear(x).masked_fill(y, 0.0), numbers(4), flags(4)),
    "decides_by_row": Case(DecidesByRow, (numbers(4),), across=False),
}
# Modules of each kind. The others are scripted.
FEW = (
    "scaled_by_std",
    "gram",
    "hidden_mean",
    "maximum_beside",
    "hides_nan",
    "number_beside_rows",
    "two_inputs_matched",
    "branches",
    "nested",
    "images_pooled",
    "words_and_weights",
    "sines",
)


def make(name: str) -> nn.Module:
    """Returns the module, always with the same weights."""
    torch.manual_seed(len(name))
    return CASES[name].make().eval()


def export(repository: Path, name: str) -> braid.ExportResult:
    return braid.export(make(name), CASES[name].batch(5, seed=0), repository / name, precisions=())


def differences(client: braid.Client, name: str) -> list[str]:
    """Sends concurrent requests. Returns the differences between the server's and the module's
    outputs."""
    module, case = make(name), CASES[name]
    batches = [case.batch(count, seed) for seed, count in enumerate(REQUESTS, start=1)]
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            replies = list(pool.map(lambda batch: _answer(client, name, batch), batches))
    except braid.BraidError as error:
        return [str(error)]
    found = []
    for batch, reply in zip(batches, replies):
        with torch.no_grad():
            wanted = _leaves(module(*batch.values()))
        rows = len(batch["x"])
        if len(reply) != len(wanted):
            found.append(f"{rows} rows: {len(reply)} outputs, not {len(wanted)}")
        for (output, got), tensor in zip(reply.items(), wanted):
            # An output without dims is one number per request.
            expected = (tensor if tensor.dim() else tensor.reshape(1)).detach().numpy()
            if got.shape != expected.shape:
                found.append(f"{rows} rows: {output} is {got.shape}, not {expected.shape}")
            elif not np.allclose(got, expected, rtol=RTOL, atol=ATOL, equal_nan=True):
                largest = np.nanmax(np.abs(got.astype(float) - expected.astype(float)))
                found.append(f"{rows} rows: {output} differs by up to {largest:.2g}")
    return found


def _answer(client: braid.Client, name: str, batch: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return dict(client.infer(name, {key: each.numpy() for key, each in batch.items()}))


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [leaf for each in inner for leaf in _leaves(each)]
