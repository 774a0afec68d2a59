"""Job specs: dicts with the keys of a YAML spec, and braid.v1.JobSpec."""

import pytest

from braid import _job_specs

TRAIN = {
    "kind": "train",
    "model": "fashion",
    "data": {"path": "train.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}},
    "evaluate": {"path": "test.parquet", "every": "1 epoch", "metrics": ["accuracy"]},
    "loss": "cross_entropy",
    "optimizer": {"name": "SGD", "lr": 0.01, "momentum": 0.9},
    "epochs": 6,
    "batch_size": 256,
    "seed": 1,
    "publish": "last",
}
# Every transform, with and without arguments.
DECODE = {"image": {"transforms": [
    {"resize": {"size": [256, 300], "interpolation": "bicubic"}},
    {"center_crop": 224},
    {"random_crop": {"size": 200, "padding": 4}},
    {"random_resized_crop": {"size": 224, "scale": [0.5, 1.0], "ratio": [1.0, 1.0]}},
    "random_horizontal_flip",
    {"random_vertical_flip": 0.25},
    "to_float",
    {"normalize": {"mean": [0.5], "std": [0.25]}},
]}}  # fmt: skip
INFER = {
    "kind": "infer",
    "model": "fashion",
    "data": {"path": "test.parquet", "inputs": {"x": "image"}},
    "output": {"path": "scores.parquet", "keep": ["id", "label"], "outputs": {"logits": "y"}},
}


def changed(spec, path, value):
    """Returns a copy of the spec with another value. path: keys, joined by '.'."""
    first, _, rest = path.partition(".")
    inner = spec.get(first, {})
    return {**spec, first: changed(inner, rest, value) if rest else value}


def test_training_spec():
    job = _job_specs.to_proto(TRAIN).train
    assert (job.model, job.epochs, job.batch_size, job.options.seed) == ("fashion", 6, 256, 1)
    assert job.data.path == "train.parquet"
    assert [(c.name, list(c.columns)) for c in job.data.inputs] == [("x", ["image"])]
    assert [(c.name, list(c.columns)) for c in job.data.targets] == [("target", ["label"])]
    assert job.evaluation.every.epochs == 1
    assert list(job.evaluation.metrics) == ["accuracy"]
    assert [loss.name for loss in job.losses] == ["cross_entropy"]
    assert (job.optimizer.sgd.lr, job.optimizer.sgd.momentum) == (0.01, 0.9)
    assert job.publish == job.PUBLISH_LAST
    assert not job.HasField("shuffle")


def test_inference_spec():
    job = _job_specs.to_proto(INFER).infer
    assert job.output.path == "scores.parquet"
    assert list(job.output.keep) == ["id", "label"]
    assert [(c.name, c.column) for c in job.output.outputs] == [("logits", "y")]


@pytest.mark.parametrize("spec", [
    TRAIN,
    INFER,
    changed(TRAIN, "evaluate.every", "500 steps"),
    changed(TRAIN, "data.split", {"validation": 0.25}),
    changed(TRAIN, "data.weights", "weight"),
    changed(TRAIN, "data.inputs", {"x": {"column": "image", "dtype": "FP32", "scale": 0.5}}),
    changed(TRAIN, "data.inputs", {"x": ["area", "rooms"]}),
    changed(TRAIN, "data.inputs", {"x": {"column": "image", "decode": DECODE}}),
    changed(TRAIN, "data.inputs", {"x": {
        "column": "file",
        "decode": {"paths": True},
        "evaluation_decode": {"image": {"channels": 1, "max_pixels": 1000}},
    }}),
    changed(TRAIN, "data.inputs", {"x": {
        "column": "text",
        "decode": {"tokenizer": "tokenizer.json", "max_length": 16, "pad_token": 0, "mask": "m"},
    }}),
    changed(TRAIN, "data.on_unreadable", "skip"),
    changed(INFER, "data.on_unreadable", "fail"),
    changed(TRAIN, "schedule", {"name": "StepLR", "step_size": 10}),
    changed(TRAIN, "loss", [{"name": "mse", "factor": 2.0}, {"name": "l1", "target": "b"}]),
    {**TRAIN, "shuffle": False, "drop_last": True, "tags": ["a", "b"], "priority": -2},
    {**INFER, "batch_size": 7, "version": 3, "tags": ["nightly"]},
    changed(INFER, "output.format", "npy"),
])  # fmt: skip
def test_specs_survive_the_conversion(spec):
    proto = _job_specs.to_proto(spec)
    back = _job_specs.from_proto(proto)
    if isinstance(spec.get("loss"), str):
        back["loss"] = back["loss"].pop("name")
    assert back == spec
    assert _job_specs.to_proto(back) == proto


@pytest.mark.parametrize("spec, path, value, message", [
    (TRAIN, "kind", None, "kind: missing (expected one of train, infer)"),
    (TRAIN, "kind", "tune", "kind: 'tune' (expected one of train, infer)"),
    (TRAIN, "modle", "x", "modle: unknown key (expected one of kind, model, "),
    (TRAIN, "output", {}, "output: unknown key (expected one of kind, model, "),
    (TRAIN, "data.input", {}, "data.input: unknown key (expected one of path, inputs, targets, "),
    (TRAIN, "data.split.test", 0.1, "data.split.test: unknown key (expected one of validation)"),
    (TRAIN, "data.inputs", {"x": {"colum": "y"}},
     "data.inputs.x.colum: unknown key (expected one of column, dtype, scale, decode, "),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": [{"blur": 3}]}}},
     "data.inputs.x.decode.image.transforms[0]: unknown transform 'blur' (expected one of resize, "),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": [{"resize": "a"}]}}},
     "data.inputs.x.decode.image.transforms[0].resize.size: 'a' (expected an integer, or height"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": [{"resize": 3, "a": 1}]}}},
     "data.inputs.x.decode.image.transforms[0]: {'resize': 3, 'a': 1} (expected one transform"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": [{"resize": 2**63}]}}},
     "data.inputs.x.decode.image.transforms[0].resize.size: [9223372036854775808] (expected a 64-b"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": [{"resize": [1, 2, 3]}]}}},
     "data.inputs.x.decode.image.transforms[0].resize.size: [1, 2, 3] (expected an integer, or hei"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": [{"random_vertical_flip": True}]}}},
     "data.inputs.x.decode.image.transforms[0].random_vertical_flip.p: True (expected a number)"),
    (TRAIN, "data.inputs.x",
     {"decode": {"image": {"transforms": [{"resize": {"size": 2, "interpolation": ["nearest"]}}]}}},
     "data.inputs.x.decode.image.transforms[0].resize.interpolation: unknown value ['nearest'] (ex"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"channels": True}}},
     "data.inputs.x.decode.image.channels: True (expected an integer)"),
    (TRAIN, "data.inputs.x", {"decode": {"tokenizer": "t", "max_length": 2**63}},
     "data.inputs.x.decode.max_length: 9223372036854775808 (expected a 64-bit integer)"),
    (TRAIN, "data.inputs.x", {"decode": {"tokenizer": "\ud800"}},
     r"data.inputs.x.decode.tokenizer: '\ud800' (expected text without surrogates)"),
    (TRAIN, "data.inputs.x", [], "data.inputs.x.column: [] (expected a column, or a list of col"),
    (TRAIN, "data.inputs", {}, "data.inputs: {} (expected a value)"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {"transforms": "to_float"}}},
     "data.inputs.x.decode.image.transforms: 'to_float' (expected a list of transforms)"),
    (TRAIN, "data.inputs.x", {"decode": {"image": {}, "max_length": 3}},
     "data.inputs.x.decode.max_length: cannot be combined with 'image'"),
    (TRAIN, "data.inputs.x", {"decode": {"max_length": 3}},
     "data.inputs.x.decode.tokenizer: missing"),
    (TRAIN, "data.on_unreadable", "drop",
     "data.on_unreadable: unknown value 'drop' (expected one of fail, skip)"),
    (TRAIN, "data.inputs", ["x"], "data.inputs: ['x'] (expected a column for each name)"),
    (TRAIN, "data.inputs", {"x": 3}, "data.inputs.x.column: 3 (expected a column, or a list of columns)"),
    (TRAIN, "data.inputs", {"x": {"dtype": "FP32", "scale": 0}},
     "data.inputs.x.scale: 0 (with this scale, all values would become 0)"),
    (TRAIN, "version", "stable",
     "version: 'stable' (expected a number; labels are not possible in a job)"),
    (TRAIN, "data.path", 3, "data.path: 3 (expected a string)"),
    (TRAIN, "data", "train.parquet", "data: 'train.parquet' (expected keys and values)"),
    (TRAIN, "data.path", None, "data.path: missing"),
    (TRAIN, "model", None, "model: missing"),
    (TRAIN, "optimizer", None, "optimizer: missing"),
    (TRAIN, "batch_size", None, "batch_size: missing"),
    (TRAIN, "loss", None, "loss: missing (required except for "),
    (TRAIN, "loss_mode", "client", "loss_mode: 'client' (a job has no client to "),
    (TRAIN, "epochs", None, "epochs: missing (expected epochs or steps)"),
    (TRAIN, "steps", 5, "steps: given with epochs (expected epochs or steps)"),
    (TRAIN, "epochs", "six", "epochs: 'six' (expected an integer)"),
    (TRAIN, "evaluate.every", "2", "evaluate.every: '2' (expected an interval, such as "),
    (TRAIN, "evaluate.every", "0 steps", "evaluate.every: '0 steps' (expected an interval, "),
    (TRAIN, "evaluate.metric", [], "evaluate.metric: unknown key (expected one of path, every, "),
    (TRAIN, "publish", "first", "publish: unknown value 'first' (expected one of nothing, last, "),
    (TRAIN, "optimizer.lrr", 1, "optimizer 'SGD': unknown parameter 'lrr' (expected one of lr, "),
    (TRAIN, "idle_timeout", 5, "idle_timeout: unknown key (expected one of kind, model, "),
    (TRAIN, "grad_scaler.scale", 5, "grad_scaler: unknown parameter 'scale' (expected one of "),
    (INFER, "output.path", "", "output.path: '' (expected a value)"),
    (INFER, "output.keeps", [], "output.keeps: unknown key (expected one of path, format, keep, "),
    (INFER, "output.format", "csv",
     "output.format: unknown value 'csv' (expected one of parquet, npy, jsonl)"),
    (INFER, "data.targets", {}, "data.targets: unknown key (expected one of path, inputs, on_unreadable)"),
    (INFER, "epochs", 1, "epochs: unknown key (expected one of kind, model, version, data, "),
])  # fmt: skip
def test_errors_name_the_path_of_the_key(spec, path, value, message):
    with pytest.raises(ValueError) as error:
        _job_specs.to_proto(changed(spec, path, value))
    assert str(error.value).startswith(message)


def test_a_spec_is_a_dict():
    with pytest.raises(ValueError, match="spec: 3 "):
        _job_specs.to_proto(3)
