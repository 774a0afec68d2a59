"""Models of torchvision and transformers: small, with random weights, in float64."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torchvision
import transformers
from e2e.support import models
from e2e.support.long_training import Batch
from torch import Tensor, nn

CLASSES = 3
WORDS = 100


def bert_config(name: str, more_inputs: str = "", first_output: str = "") -> str:
    """Config of a BERT that takes sentences of any length."""
    return f"""
name: "{name}"
backend: "pytorch"
max_batch_size: 64
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
  {more_inputs}
]
output [ {first_output} {{ name: "logits" data_type: TYPE_FP64 dims: [ {CLASSES} ] }} ]
"""


def resnet18() -> nn.Module:
    """Zero-initializes the residual branches, as is usual. Otherwise the first steps are so
    unstable that rounding errors grow to the size of the losses."""
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=CLASSES, zero_init_residual=True).double()


def bert(dropout: float = 0.0) -> nn.Module:
    """Classifies sentences of up to 32 words. Given labels, returns the loss, then the logits."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=CLASSES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        # Tuples instead of a ModelOutput, which a trace cannot return.
        torchscript=True,
    )
    return transformers.BertForSequenceClassification(config).double()


def image_batches(count: int, rows: int) -> list[Batch]:
    """Yields images of 3×16×16 whose class is the brightest channel."""
    generator = torch.Generator().manual_seed(1)
    batches: list[Batch] = []
    for _ in range(count):
        x = torch.randn(rows, 3, 16, 16, generator=generator, dtype=torch.float64)
        x += torch.randn(rows, 3, 1, 1, generator=generator, dtype=torch.float64)
        batches.append(({"x": x}, {"target": x.mean((2, 3)).argmax(1)}))
    return batches


def sentence_batches(count: int, rows: int, length: int = 12) -> list[Batch]:
    """Yields padded sentences whose class is the first word's index modulo 3."""
    generator = torch.Generator().manual_seed(2)
    batches: list[Batch] = []
    for _ in range(count):
        words = torch.randint(WORDS, (rows, length), generator=generator)
        lengths = torch.randint(3, length + 1, (rows, 1), generator=generator)
        mask = (torch.arange(length) < lengths).long()
        inputs = {"input_ids": words * mask, "attention_mask": mask}
        batches.append((inputs, {"target": words[:, 0] % CLASSES}))
    return batches


def trace(module: nn.Module, inputs: dict[str, Tensor]) -> torch.jit.ScriptModule:
    """Traces `module` in its present mode, because torch.jit.script does not support BERT's Python.
    The trace accepts other batch sizes and lengths, but keeps the dropout of that mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A second run would draw other random numbers, and the check would fail.
        return torch.jit.trace(module, example_kwarg_inputs=inputs, check_trace=False)


def export_pairs(repository: Path, length: int) -> None:
    """Exports the models of `export_all` as pairs, resnet18_pair and so on, for sentences of
    `length` words."""
    ((image, _),) = image_batches(1, 2)
    ((sentences, targets),) = sentence_batches(1, 2, length)
    for name, module, inputs in [
        ("resnet18", resnet18(), image),
        ("bert", bert(), sentences),
        ("bert_with_loss", bert(), {**sentences, "labels": targets["target"]}),
        ("bert_with_dropout", bert(dropout=0.1), sentences),
    ]:
        models.export_pair(repository / f"{name}_pair", module, inputs)


def export_all(repository: Path) -> None:
    """Writes resnet18, scripted, and bert, bert_with_loss (its labels are an input) and
    bert_with_dropout, traced."""
    image = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    models.export(repository / "resnet18", resnet18(), inputs=[image])
    sentences, targets = sentence_batches(1, 2)[0]
    labelled = {**sentences, "labels": targets["target"]}
    for name, module, inputs, config in [
        ("bert", bert().eval(), sentences, bert_config("bert")),
        (
            "bert_with_loss",
            bert().eval(),
            labelled,
            bert_config(
                "bert_with_loss",
                more_inputs=', { name: "labels" data_type: TYPE_INT64 }',
                first_output='{ name: "loss" data_type: TYPE_FP64 },',
            ),
        ),
        (
            "bert_with_dropout",
            bert(dropout=0.1).train(),
            sentences,
            bert_config("bert_with_dropout"),
        ),
    ]:
        models.export(repository / name, trace(module, inputs), config=config)
