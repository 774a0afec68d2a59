"""The models under test, as PyTorch modules and as a model repository."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.utils.bundled_inputs
from torch import Tensor, nn
from torch._export.serde.schema import ScalarType

from e2e.support import configs, exports, programs

# Only the first two, training_models.FORMATS, can be trained.
FORMATS = ("torchscript", "pair", "exported", "aot")
IDENTITY_TYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
# Datatypes that every supported torch.export can write, in the order of EveryType's arguments.
EXPORTED_TYPES = [name for name in IDENTITY_TYPES if name not in ("UINT32", "UINT64")]


class ConvNet(nn.Module):
    """A small convnet with batch norm for images of 28×28 and 10 classes, like the demo's."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class RunningStatistics(nn.Module):
    """Batch norm whose running statistics are the last batch's (momentum 1), and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=1.0)
        self.classifier = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(x).mean([2, 3]))


class Chain(nn.Module):
    """Linear layers of the given sizes, 10→3→4→5, separated by an activation."""

    def __init__(self, *sizes: int, activation: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip(sizes, sizes[1:]):
            layers += [nn.Linear(before, after), activation()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.linear(a) * b


class LogitsAndProbabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(x)
        return logits, logits.softmax(1)


class NamedOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.linear(x)
        return {"hidden": hidden, "total": hidden.sum(1)}


class WordVectors(nn.Module):
    """Embeds words of a vocabulary of 1000 in 5 dimensions: int [B] to [B, 5], [B, n] to
    [B, n, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 10)
        self.linear = nn.Linear(10, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.linear(self.embedding(words))


class ComputedWordVectors(WordVectors):
    """Computes its indices, so only the embedding can detect that one is out of range."""

    def forward(self, words: Tensor) -> Tensor:
        return self.linear(self.embedding((words + 1) - 1))


class Slow(nn.Module):
    """Takes about 5 ms per row with any number of threads: many small operations that LibTorch does
    not parallelize. (It does parallelize MKL's tanh of 256 numbers. On a busy machine, threads that
    wait for each other are a hundred times slower.)"""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(256))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2000):
            x = (x * self.scale).abs()
        return x


class Identity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class EveryType(nn.Module):
    """Returns its inputs, one tensor of each datatype that torch.export can write."""

    def forward(
        self,
        bool: Tensor,
        uint8: Tensor,
        uint16: Tensor,
        int8: Tensor,
        int16: Tensor,
        int32: Tensor,
        int64: Tensor,
        fp16: Tensor,
        bf16: Tensor,
        fp32: Tensor,
        fp64: Tensor,
    ) -> dict[str, Tensor]:
        return {
            "same_bool": bool,
            "same_uint8": uint8,
            "same_uint16": uint16,
            "same_int8": int8,
            "same_int16": int16,
            "same_int32": int32,
            "same_int64": int64,
            "same_fp16": fp16,
            "same_bf16": bf16,
            "same_fp32": fp32,
            "same_fp64": fp64,
        }


def mlp(activation: type[nn.Module]) -> Chain:
    return Chain(784, 512, 512, 10, activation=activation)


# Name → (module, example inputs of one row). The example replaces a config.pbtxt.
_WITH_EXAMPLE = {
    "chain": (lambda: Chain(10, 3, 4, 5), [torch.zeros(1, 10)]),
    "chain64": (lambda: Chain(10, 3, 4, 5).double(), [torch.zeros(1, 10).double()]),
    "mlp64": (lambda: mlp(nn.ReLU).double(), [torch.zeros(1, 784).double()]),
    "smooth": (lambda: mlp(nn.Tanh), [torch.zeros(1, 784)]),
    "convnet": (ConvNet, [torch.zeros(1, 1, 28, 28)]),
    "convnet64": (lambda: ConvNet().double(), [torch.zeros(1, 1, 28, 28).double()]),
    "statistics": (RunningStatistics, [torch.zeros(1, 3, 224, 224)]),
    "two_inputs": (TwoInputs, [torch.zeros(1, 4), torch.zeros(1, 3)]),
    "two_outputs": (LogitsAndProbabilities, [torch.zeros(1, 6)]),
    "named_outputs": (NamedOutputs, [torch.zeros(1, 6)]),
    "words": (WordVectors, [torch.zeros(1, dtype=torch.int64)]),
    "every_type": (
        EveryType,
        [torch.zeros(1, 4, dtype=IDENTITY_TYPES[datatype]) for datatype in EXPORTED_TYPES],
    ),
}
# Name → (module, config.pbtxt).
_WITH_CONFIG = {
    "mlp": (lambda: mlp(nn.ReLU), configs.MLP),
    "sentences": (WordVectors, configs.SENTENCES),
    "waiting_words": (ComputedWordVectors, configs.WAITING_WORDS),
    "slow": (Slow, configs.SLOW),
    **{
        f"identity_{datatype.lower()}": (Identity, configs.identity(datatype))
        for datatype in IDENTITY_TYPES
    },
}


def make(name: str, seed: int = 0) -> nn.Module:
    """Returns the module that the repository has under `name`, always with the same weights."""
    torch.manual_seed(seed)
    module, _ = {**_WITH_EXAMPLE, **_WITH_CONFIG}[name]
    return module()


# Models that torch.export supports, with a row of each input. The others are in float64, slow, or
# use a datatype that it cannot write.
_ROWS: dict[str, tuple[Tensor, ...]] = {
    **{
        name: tuple(_WITH_EXAMPLE[name][1])
        for name in (
            "chain",
            "convnet",
            "two_inputs",
            "two_outputs",
            "named_outputs",
            "words",
            "every_type",
        )
    },
    "mlp": (torch.zeros(1, 784),),
    "waiting_words": (torch.zeros(1, dtype=torch.int64),),
    **{
        f"identity_{datatype.lower()}": (torch.zeros(1, 4, dtype=dtype),)
        for datatype, dtype in IDENTITY_TYPES.items()
        if datatype in EXPORTED_TYPES or hasattr(ScalarType, datatype)
    },
}
# Models whose outputs a test compares. Compiling one takes about 5 s.
_COMPILED = (
    "mlp",
    "convnet",
    "two_inputs",
    "two_outputs",
    "named_outputs",
    "words",
    "waiting_words",
    "every_type",
)
_SENTENCES = torch.zeros(3, 5, dtype=torch.int64)


def names_in(format: str) -> list[str]:
    """Returns the names of the models in a repository in `format`."""
    return {
        "torchscript": [*_WITH_EXAMPLE, *_WITH_CONFIG],
        "pair": [*_ROWS],
        "exported": [*_ROWS, "sentences"],
        "aot": [*_COMPILED, "sentences"],
    }[format]


def export_all(repository: Path, format: str = "torchscript") -> None:
    for name in names_in(format):
        export_model(repository / name, name, format)


def export_model(directory: Path, name: str, format: str) -> None:
    write = {
        "torchscript": _write_script,
        "pair": _write_pair,
        "exported": _write_program,
        "aot": _write_compiled,
    }[format]
    write(directory, name)
    if name in _WITH_CONFIG:
        _, config = _WITH_CONFIG[name]
        if name.startswith("identity_") and format != "torchscript":
            config = config.replace("dims: [ -1 ]", "dims: [ 4 ]")  # Packages have their example's.
        (directory / "config.pbtxt").write_text(config)


def _write_script(directory: Path, name: str) -> None:
    _, inputs = _WITH_EXAMPLE.get(name, (None, None))
    export(directory, make(name), inputs=inputs)


def _write_pair(directory: Path, name: str) -> None:
    export_pair(directory, make(name), _ROWS[name])


def _write_program(directory: Path, name: str) -> None:
    path = directory / "1/model.pt2"
    if name == "sentences":
        programs.save(path, make(name), [_SENTENCES], _any_sentences())
    else:
        # torch.export treats a size of 1 as a constant.
        example = [torch.cat([row, row]) for row in _ROWS[name]]
        programs.save(path, make(name), example, programs.any_batch(example))


def _write_compiled(directory: Path, name: str) -> None:
    if name == "sentences":
        path = directory / "1/model.pt2"
        programs.compile_from_one(path, make(name), [_SENTENCES], _any_sentences())
    else:
        exports.export(make(name), _ROWS[name], directory, "aot")


def _any_sentences() -> programs.Sizes:
    return [{0: torch.export.Dim("rows"), 1: torch.export.Dim("length")}]


def export(
    directory: Path,
    module: nn.Module,
    inputs: list[Tensor] | None = None,
    config: str | None = None,
    version: int = 1,
) -> None:
    """Writes a model of the repository: the scripted module with an example or a config.pbtxt."""
    with warnings.catch_warnings():
        # PyTorch deprecates TorchScript.
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(module.eval())
        if inputs is not None:
            scripted = torch.utils.bundled_inputs.bundle_inputs(scripted, [tuple(inputs)])
    (directory / str(version)).mkdir(parents=True)
    scripted.save(str(directory / str(version) / "model.pt"))
    if config is not None:
        (directory / "config.pbtxt").write_text(config)


def export_pair(
    directory: Path,
    module: nn.Module,
    inputs: Any,
    config: str | None = None,
    **options: Any,
) -> None:
    """Writes a model of the repository as an exported pair. inputs, options: of braid.export.
    config: replaces the generated config.pbtxt."""
    exports.export(module, inputs, directory, "pair", **{"precisions": [], **options})
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
