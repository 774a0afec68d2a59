"""Job specs in YAML files, and examples of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import yaml

from braid.cli import errors

TRAIN = """\
# Job that trains a model. Submit it: braid jobs submit FILE --wait
# Paths are on the server, relative to its --data_root. Lines with '#' show options and defaults.
kind: train
model: fashion
data:
  path: train.parquet            # also Arrow IPC, CSV, .npy, .npz, safetensors, IDX, or a folder
  inputs: {x: image}             # column of the file by input of the model
  # inputs: {x: {column: image, dtype: FP32, scale: 0.00392157}}
  targets: {target: label}       # column by target of the loss
  # split: {validation: 0.1}     # share of the rows that are set aside for the evaluation
  # weights: weight              # column of sample weights
evaluate:
  path: test.parquet             # default: the validation split
  every: 1 epoch                 # or, for example, 500 steps
  metrics: [accuracy]            # besides the loss: accuracy, top_k (with k), mse, iou, …
loss: cross_entropy              # or, for example, {name: cross_entropy, label_smoothing: 0.1}
optimizer: {name: SGD, lr: 0.01, momentum: 0.9}
epochs: 6                        # or steps: 1000
batch_size: 256                  # rows of one step, over all devices
# shuffle: true
# drop_last: false
seed: 1                          # of the order of the rows, the split, and dropout
# schedule: {name: CosineAnnealingLR, T_max: 1000}
# clip_grad_norm: 1.0
# precision: bfloat16
# checkpoint_every: 500          # steps; default: a checkpoint every 60 seconds
# from_trainer: NAME             # start from a trainer's newest checkpoint
publish: last                    # last, best or nothing
# best_metric: accuracy          # for publish: best; default: loss
# early_stopping: {patience: 3}  # ends after 3 evaluations without a better best_metric
# tags: [baseline]
# priority: 0                    # higher starts first, and preempts running jobs of lower priority
"""
INFER = """\
# Job that runs a model on all rows of a dataset. Submit it: braid jobs submit FILE --wait
# Paths are on the server. Lines with '#' show options and defaults.
kind: infer
model: fashion
# version: 3                     # default: the newest when the job starts
data:
  path: test.parquet             # relative to --data_root
  inputs: {x: image}             # column of the file by input of the model
output:
  path: scores.parquet           # relative to --output_root; also .npy, .jsonl, or a folder: scores/
  keep: [id, label]              # columns of the data to copy
  # outputs: {logits: score}     # column of the new file by output of the model; default: all
  # overwrite: false
# batch_size: 1024               # maximum rows of a forward pass; default: chosen by measuring
# tags: [nightly]
# priority: 0                    # higher starts first, and preempts running jobs of lower priority
"""


# Fields of the protocol, without "spec.train.options.", whose keys in a spec have other names.
_KEYS = (
    (r"^validation_split$", "data.split.validation"),
    (r"^weight_column$", "data.weights"),
    (r"^evaluation\b", "evaluate"),
    (r"\.every\.(epochs|steps)$", ".every"),
    (r"^metrics\b", "evaluate.metrics"),
    (r"^targets\b", "data.targets"),
    (r"^losses\b", "loss"),
    (r"^(optimizer|schedule)\.(?!warmup\b)\w+\.", r"\1."),
    (r"^schedule\.t_max$", "schedule.T_max"),
    (r"^optimizer\.beta([12])$", "optimizer.betas"),
    (r"^checkpoints\.every_operations$", "checkpoint_every"),
    (r"^checkpoints\.", "checkpoint_"),
    (r"^clipping\.max_value$", "clip_grad_value"),
    (r"^clipping(\.max_norm$)?", "clip_grad_norm"),
    (r"(^data\..*)\.datatype$", r"\1.dtype"),
    (r"(^(data|output)\..*\])\.(name|columns?)\b.*$", r"\1"),
)
# A field at the start of a message, or with its path from "spec".
_FIELD = re.compile(r"\bspec\.[\w.\[\]]*\w\]?|^[\w.\[\]]+(?=: )")
# Names of the protocol in the text of messages. Names of the user are quoted.
_WORDS = {
    "datatype": "dtype",
    "validation_split": "data.split.validation",
    "expected evaluation": "expected evaluate",
    "PUBLISH_LAST": "publish: last",
}
_WORD = re.compile(rf"(?<![\w'/.-])({'|'.join(_WORDS)})\b")


class _Loader(yaml.SafeLoader):
    """Rejects keys that are given twice, of which YAML would use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, str) and name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {name!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(str(name))
        return super().construct_mapping(node, deep)


def read(path: str) -> dict[str, Any]:
    """Returns the spec in a file, with the bytes of loss modules. UsageError if it is wrong.

    Paths of loss modules are relative to the file.
    """
    from braid import _job_specs

    try:
        # Bytes: the loader finds the encoding.
        spec = yaml.load(Path(path).read_bytes(), _Loader)  # noqa: S506: a SafeLoader
    except OSError as error:
        raise errors.usage(path, "cannot be read", error.strerror or str(error)) from None
    except yaml.YAMLError as error:
        raise errors.usage(path, "not valid YAML", " ".join(str(error).split())) from None
    if not isinstance(spec, dict):
        raise errors.usage(path, "not a job spec", "expected keys and values; see braid jobs init")
    losses = spec.get("loss")
    for loss in losses if isinstance(losses, list) else [losses]:
        if isinstance(loss, dict) and isinstance(loss.get("module"), str):
            loss["module"] = _read_module(path, loss["module"])
    try:
        _job_specs.to_proto(spec)
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from None
    return spec


def with_keys(text: str, spec: Mapping[str, Any]) -> str:
    """Replaces the names of the protocol in an error about a spec by the keys of the spec."""
    text = _FIELD.sub(lambda match: _key(match[0], spec), text)
    return _WORD.sub(lambda match: _WORDS[match[0]], text)


@contextmanager
def errors_by_key(spec: Mapping[str, Any]) -> Iterator[None]:
    """Raises errors of the server with the keys of the spec in their messages."""
    from braid.errors import BraidError

    try:
        yield
    except BraidError as error:
        text = with_keys(error.message, spec)
        raise type(error)(text, error.violations, error.attempts) from None


def _key(field: str, spec: Mapping[str, Any]) -> str:
    """Returns the key that sets a field of the protocol: "spec.train.weight_column"."""
    field = re.sub(r"^spec\.(train\.|infer\.)?(options\.)?", "", field)
    for pattern, key in _KEYS:
        field = re.sub(pattern, key, field)
    names = re.match(r"(data\.inputs|data\.targets|output\.outputs)\[(\d+)\]", field)
    if names:
        group, name = names[1].split(".")
        entries = list((spec.get(group) or {}).get(name) or ())
        if int(names[2]) < len(entries):
            field = f"{names[1]}.{entries[int(names[2])]}{field[names.end():]}"
    if not isinstance(spec.get("loss"), (list, tuple)):
        field = field.replace("loss[0]", "loss", 1)
    return field


def _read_module(spec: str, module: str) -> bytes:
    try:
        return (Path(spec).parent / module).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise errors.usage(f"{spec}: loss.module", f"cannot read {module!r}", reason) from None
