"""resnet18, mobilenet_v3_small and vit_b_16 of torchvision and the BERT encoder of transformers, with
random weights: 1 to 4 replicas give PyTorch's outputs for any batch."""

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
from e2e import foreign_models, models
from e2e.server import Server
from torch import Tensor, nn

# Above 64 a batch is cut.
BATCHES = (1, 7, 64, 333)
CLASSES = 10
SIDE = 32
LENGTH = 16


def randomized(make: Callable[[], nn.Module]) -> nn.Module:
    """Batch norms as if after some training: as they begin they change nothing."""
    torch.manual_seed(0)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 1.5)
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.05)  # vit_b_16 begins with a head of zeros
    return module.eval()


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=CLASSES)


def mobilenet_v3_small() -> nn.Module:
    return torchvision.models.mobilenet_v3_small(num_classes=CLASSES)


def vit_b_16() -> nn.Module:
    """For images of 4 patches, or 333 of them would take minutes."""
    return torchvision.models.vit_b_16(num_classes=CLASSES, image_size=SIDE)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=foreign_models.WORDS,
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


def sentences(rows: int) -> dict[str, Tensor]:
    ((inputs, _),) = foreign_models.sentence_batches(1, rows, length=LENGTH)
    return inputs


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "resnet18": (resnet18, images),
    "mobilenet_v3_small": (mobilenet_v3_small, images),
    "vit_b_16": (vit_b_16, images),
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


# The same as exported pairs. The others take a minute to export: scripts/train_foreign_pairs.py has
# them.
PAIRS = {"resnet18_pair": "resnet18", "bert_pair": "bert"}


def export_pairs(repository: Path) -> None:
    for name, of in PAIRS.items():
        make, inputs = MODELS[of]
        models.export_pair(repository / name, randomized(make), inputs(3))
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace("max_batch_size: 256", "max_batch_size: 64"))


def export(repository: Path) -> None:
    """resnet18 and mobilenet_v3_small scripted, the others traced."""
    for name, (make, inputs) in MODELS.items():
        module = randomized(make)
        if name in ("resnet18", "mobilenet_v3_small"):
            saved = torch.jit.script(module)
        else:
            saved = foreign_models.trace(module, inputs(3))
        (repository / name / "1").mkdir(parents=True)
        saved.save(str(repository / name / "1/model.pt"))
        config = BERT_CONFIG if name == "bert" else IMAGES_CONFIG
        (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("foreign")
    with warnings.catch_warnings():
        # PyTorch deprecates TorchScript; a trace warns of every number that it takes for constant.
        warnings.simplefilter("ignore")
        export(directory)
    export_pairs(directory)
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
    outputs = {}
    with torch.no_grad():
        for rows in BATCHES:
            result = module(*inputs(rows).values())
            leaves = result if isinstance(result, tuple) else (result,)
            outputs[rows] = [leaf.numpy() for leaf in leaves]
    return outputs


@pytest.mark.parametrize("rows", BATCHES)
@pytest.mark.parametrize("model", [*MODELS, *PAIRS])
def test_outputs_are_pytorchs(client: braid.Client, model: str, rows: int) -> None:
    made_of = PAIRS.get(model, model)
    _, inputs = MODELS[made_of]
    outputs = list(client.infer(model, inputs(rows)).values())
    references = wanted(made_of)[rows]
    assert len(outputs) == len(references)
    for actual, reference in zip(outputs, references):
        assert np.ptp(reference) > 0.01  # or equality would say little
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-4)
