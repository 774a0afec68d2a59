"""Compares outputs of models of torchvision and transformers, with random weights, on 1 to 4
replicas with PyTorch's."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import torchvision
import transformers
from e2e.support import models, programs, third_party_models
from e2e.support.server import Server
from torch import Tensor, nn

# Batches above 64 rows are split.
BATCHES = (1, 7, 64, 333)
CLASSES = 10
SIDE = 32
LENGTH = 16


def randomized(make: Callable[[], nn.Module]) -> nn.Module:
    """Randomizes batch norm as if trained: freshly initialized batch norm changes nothing."""
    torch.manual_seed(0)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 1.5)
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.05)  # A vision transformer's head starts at zero.
    return module.eval()


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=CLASSES)


def mobilenet_v3_small() -> nn.Module:
    return torchvision.models.mobilenet_v3_small(num_classes=CLASSES)


def small_vit() -> nn.Module:
    """A vision transformer of two layers, for images of 4 patches."""
    return torchvision.models.VisionTransformer(
        image_size=SIDE,
        patch_size=SIDE // 2,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=CLASSES,
    )


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=third_party_models.WORDS,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
        torchscript=True,
    )
    return transformers.BertModel(config)


def images(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {"x": torch.randn(rows, 3, SIDE, SIDE, generator=generator)}


def sentences(rows: int, length: int = LENGTH) -> dict[str, Tensor]:
    ((inputs, _),) = third_party_models.sentence_batches(1, rows, length)
    return inputs


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "resnet18": (resnet18, images),
    "mobilenet_v3_small": (mobilenet_v3_small, images),
    "small_vit": (small_vit, images),
    "bert": (bert, sentences),
}
IMAGES_CONFIG = f"""
backend: "pytorch"
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ {CLASSES} ] }} ]
"""
BERT_CONFIG = """
backend: "pytorch"
max_batch_size: 64
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [
  { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 128 ] },
  { name: "pooler_output" data_type: TYPE_FP32 dims: [ 128 ] }
]
"""


# Served under name and format. test_models_nobody_wrote.py serves a pair of resnet18,
# scripts/long/train_foreign_pairs.py one of mobilenet_v3_small.
SERVED = {
    "torchscript": ("resnet18", "mobilenet_v3_small", "small_vit", "bert"),
    "pair": ("small_vit", "bert"),
    "exported": ("resnet18", "mobilenet_v3_small", "small_vit", "bert"),
}
EACH = [(model, format) for format, held in SERVED.items() for model in held]


def export_script(directory: Path, model: str) -> None:
    """resnet18 and mobilenet_v3_small scripted, the others traced."""
    make, inputs = MODELS[model]
    module = randomized(make)
    if model not in ("resnet18", "mobilenet_v3_small"):
        module = third_party_models.trace(module, inputs(3))
    models.export(directory, module, config=config_of(model))


def export_pair(directory: Path, model: str) -> None:
    make, inputs = MODELS[model]
    models.export_pair(directory, randomized(make), inputs(3))
    config = directory / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 256", "max_batch_size: 64"))


def export_program(directory: Path, model: str) -> None:
    """BERT takes sentences of any length."""
    make, inputs = MODELS[model]
    example = list(inputs(3).values())
    sizes = programs.any_batch(example)
    if model == "bert":
        length = torch.export.Dim("length", max=LENGTH)
        sizes = [{**each, 1: length} for each in sizes]
    programs.save(directory / "1/model.pt2", randomized(make), example, sizes)
    (directory / "config.pbtxt").write_text(config_of(model))


def config_of(model: str) -> str:
    return BERT_CONFIG if model == "bert" else IMAGES_CONFIG


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("foreign")
    export = {"torchscript": export_script, "pair": export_pair, "exported": export_program}
    with warnings.catch_warnings():
        # PyTorch deprecates TorchScript, and a trace warns about numbers that become constants.
        warnings.simplefilter("ignore")
        for model, format in EACH:
            export[format](directory / f"{model}_{format}", model)
    return directory


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda count: f"cpu{count}")
def client(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("run")
    devices = f"cpu*{request.param}"
    with Server(repository, devices, directory, ("--cpu_threads=1",), data=False) as server:
        with braid.connect(server.address) as client:
            yield client


@functools.cache
def wanted(model: str) -> dict[int, list[np.ndarray]]:
    make, inputs = MODELS[model]
    module = randomized(make)
    return {rows: outputs_of(module, inputs(rows)) for rows in BATCHES}


def outputs_of(module: nn.Module, inputs: dict[str, Tensor]) -> list[np.ndarray]:
    with torch.no_grad():
        result = module(*inputs.values())
    leaves = result if isinstance(result, tuple) else (result,)
    return [leaf.numpy() for leaf in leaves]


def assert_same(outputs: dict[str, np.ndarray], references: list[np.ndarray]) -> None:
    assert len(outputs) == len(references)
    for actual, reference in zip(outputs.values(), references):
        assert np.ptp(reference) > 0.01  # Otherwise equality would prove little.
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", BATCHES)
@pytest.mark.parametrize(("model", "format"), EACH)
def test_outputs_equal_pytorch(client: braid.Client, model: str, format: str, rows: int) -> None:
    _, inputs = MODELS[model]
    outputs = client.infer(f"{model}_{format}", inputs(rows))
    assert_same(outputs, wanted(model)[rows])


# A pair's sentences have a fixed length.
@pytest.mark.parametrize("length", [3, 9])
@pytest.mark.parametrize("format", ["torchscript", "exported"])
def test_other_lengths_equal_pytorch(client: braid.Client, format: str, length: int) -> None:
    inputs = sentences(7, length)
    outputs = client.infer(f"bert_{format}", inputs)
    assert_same(outputs, outputs_of(randomized(bert), inputs))
