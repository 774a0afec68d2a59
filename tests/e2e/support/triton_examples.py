"""A model repository like those in Triton's documentation, tutorials and tests."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from e2e.support import triton_example_configs as configs
from e2e.support.triton_example_models import (
    WORDS,
    ChannelsLast,
    Doubles,
    Encoder,
    Keyed,
    Maps,
    Recognition,
    Residual,
    RowByRow,
    Scores,
    Sentiment,
    SumAndDifference,
)
from google.protobuf import text_format
from torch import Tensor, nn
from tritonclient.grpc import model_config_pb2

RANDOM = np.random.default_rng(11)
LABELS = [f"label {index}" for index in range(10)]


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def integers(dtype: type, low: int, high: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(low, high, shape).astype(dtype)


def sentences(rows: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns words and a mask. The first word always counts."""
    mask = integers(np.int64, 0, 2, rows, words)
    mask[:, 0] = 1
    return integers(np.int64, 0, WORDS, rows, words), mask


@dataclass(frozen=True, eq=False)
class Example:
    """make: returns the module of a version in evaluation mode.
    config: the text of config.pbtxt.
    inputs: the tensors of several requests, in the order of forward's arguments.
    outputs: names of the module's outputs, in order, or the keys of a dict.
    versions: the versions in the repository.
    keyed: forward takes all inputs as one dict.
    traced: the file is a trace of the module, not a script.
    filename: the file in the folder of a version.
    """

    make: Callable[[], nn.Module]
    config: str
    inputs: list[dict[str, np.ndarray]]
    outputs: tuple[str, ...] = ("OUTPUT__0",)
    versions: tuple[int, ...] = (1,)
    keyed: bool = False
    traced: bool = False
    filename: str = "model.pt"

    @functools.cached_property
    def parsed(self) -> model_config_pb2.ModelConfig:
        return text_format.Parse(self.config, model_config_pb2.ModelConfig())

    def module(self, version: int) -> nn.Module:
        """Returns the module. Each version has its own fixed weights."""
        torch.manual_seed(version)
        return self.make().eval()

    def answer(self, inputs: dict[str, np.ndarray], version: int) -> dict[str, Tensor]:
        """Returns PyTorch's outputs in the shapes that clients see."""
        tensors = self._tensors(inputs)
        arguments = (tensors,) if self.keyed else tuple(tensors.values())
        with torch.no_grad():
            made = self.module(version)(*arguments)
        if isinstance(made, Tensor):
            made = (made,)
        if isinstance(made, tuple):
            made = dict(zip(self.outputs, made, strict=True))
        rows = next(iter(inputs.values())).shape[:1]
        specs = {spec.name: spec for spec in self.parsed.output}
        return {
            name: made[name].reshape(self._batch(rows) + tuple(specs[name].dims))
            if specs[name].HasField("reshape")
            else made[name]
            for name in self.outputs
        }

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "config.pbtxt").write_text(self.config)
        (directory / "labels.txt").write_text("\n".join(LABELS) + "\n")
        for version in self.versions:
            (directory / str(version)).mkdir()
            self._scripted(version).save(str(directory / str(version) / self.filename))

    def _scripted(self, version: int) -> torch.jit.ScriptModule:
        with warnings.catch_warnings():
            # PyTorch deprecates TorchScript.
            warnings.simplefilter("ignore")
            if not self.traced:
                return torch.jit.script(self.module(version))
            arguments = tuple(self._tensors(self.inputs[0]).values())
            return torch.jit.trace(self.module(version), arguments)

    def _batch(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        return rows if self.parsed.max_batch_size > 0 else ()

    def _tensors(self, inputs: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Returns the inputs in the shapes that the module takes."""
        specs = {spec.name: spec for spec in self.parsed.input}
        return {
            name: torch.from_numpy(array).reshape(
                self._batch(array.shape[:1]) + tuple(specs[name].reshape.shape)
            )
            if specs[name].HasField("reshape")
            else torch.from_numpy(array)
            for name, array in inputs.items()
        }


def pairs(
    dtype: type, names: tuple[str, str] = ("INPUT0", "INPUT1")
) -> list[dict[str, np.ndarray]]:
    return [{name: integers(dtype, -60, 60, rows, 16) for name in names} for rows in (1, 3, 8)]


EXAMPLES = {
    "resnet50": Example(
        lambda: Residual(1000),
        configs.RESNET50,
        [{"input__0": floats(3, 224, 224)}],
        ("output__0",),
    ),
    "densenet": Example(
        Maps,
        configs.DENSENET,
        [{"data_0": floats(3, 224, 224)}],
        ("fc6_1",),
    ),
    "inception": Example(
        ChannelsLast,
        configs.INCEPTION,
        [{"input:0": floats(299, 299, 3)}],
        ("Inception/Predictions/Softmax:0",),
    ),
    "simple": Example(
        SumAndDifference,
        configs.SIMPLE,
        pairs(np.int32),
        ("OUTPUT0", "OUTPUT1"),
    ),
    "simple_int8": Example(
        SumAndDifference,
        configs.SIMPLE_INT8,
        pairs(np.int8),
        ("OUTPUT__0", "OUTPUT__1"),
    ),
    "cpu_instance": Example(
        SumAndDifference,
        configs.CPU_INSTANCE,
        pairs(np.int32, ("INPUT__0", "INPUT__1")),
        ("OUTPUT__0", "OUTPUT__1"),
    ),
    "labelled": Example(
        Scores,
        configs.LABELLED,
        [{"INPUT0": floats(n, 16), "INPUT1": floats(n, 16)} for n in (1, 5)],
        ("OUTPUT__0", "OUTPUT__1"),
        versions=(1, 2, 3),
    ),
    "newest": Example(
        Scores,
        configs.NEWEST,
        [{"INPUT__0": floats(2, 16), "INPUT__1": floats(2, 16)}],
        ("OUTPUT__0", "OUTPUT__1"),
        versions=(1, 2, 3),
    ),
    "any_size": Example(
        Doubles,
        configs.ANY_SIZE,
        [{"INPUT__0": floats(4, n), "INPUT__1": floats(7 * n)} for n in (1, 6)],
        ("OUTPUT__0", "OUTPUT__1"),
    ),
    "reshaped": Example(
        Doubles,
        configs.RESHAPED,
        [{"INPUT__0": floats(n, 4, 4), "INPUT__1": floats(n, 2, 5)} for n in (1, 8)],
        ("OUTPUT__0", "OUTPUT__1"),
    ),
    "no_dims": Example(
        RowByRow,
        configs.NO_DIMS,
        [{"in": floats(n, 1)} for n in (1, 8)],
        ("out",),
    ),
    "dictionary": Example(
        Keyed,
        configs.DICTIONARY,
        [{"A": floats(n, 4), "B": floats(n, 3)} for n in (1, 2, 16)],
        ("scores", "best"),
        keyed=True,
    ),
    "bert": Example(
        Encoder,
        configs.BERT,
        [
            dict(zip(("input__0", "input__1"), sentences(rows, words), strict=True))
            for rows, words in ((2, 128), (1, 7), (16, 40))
        ],
        ("output__0", "output__1"),
        traced=True,
        filename="traced-model.pt",
    ),
    "sentiment": Example(
        Sentiment,
        configs.SENTIMENT,
        [
            dict(zip(("input_ids", "attention_mask"), sentences(rows, words), strict=True))
            for rows, words in ((1, 12), (5, 30))
        ],
        ("logits",),
    ),
    "text_recognition": Example(
        Recognition,
        configs.TEXT_RECOGNITION,
        [{"input.1": floats(n, 1, 32, 100)} for n in (1, 8)],
        ("308",),
    ),
}


def write_all(repository: Path) -> None:
    for name, example in EXAMPLES.items():
        example.write(repository / name)
