"""Jobs: the server trains and scores over tables without a client."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braid
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from e2e.support import durable, job_kills, jobs, models, training, training_models
from e2e.support.durable import FEATURES
from e2e.support.jobs import JobServer, tensor_of
from e2e.support.oracle import Run, assert_equal_runs
from e2e.support.polling import wait_until
from e2e.support.reference import Reference

ROWS, TEST_ROWS, LONG_ROWS = 83, 40, 20_000
CLASSES = 5
SECONDS = 120

TRAIN = """
kind: train
model: fashion
data: {path: train.parquet, inputs: {x: image}, targets: {target: label}}
evaluate: {path: test.parquet, every: 1 epoch, metrics: [accuracy]}
loss: cross_entropy
optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
epochs: 6
batch_size: 16
seed: 1
publish: last
"""
INFER = """
kind: infer
model: fashion
data: {path: test.parquet, inputs: {x: image}}
output: {path: scores.parquet, keep: [id, label], outputs: {output__0: logits}}
"""
DATA = {"path": "train.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}}
# For a model whose output has no dimension of classes.
PRICES = {"path": "long.parquet", "inputs": {"input": "image"},
          "targets": {"target": {"column": "weight", "dtype": "FP32"}}}  # fmt: skip
INPUTS = {"path": "test.parquet", "inputs": {"x": "image"}}
SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
# Of the model with dropout and batch norm, whose steps draw random numbers.
LONG = {"path": "long.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}}
NOISY: dict[str, Any] = {
    "data": LONG, "loss": "cross_entropy", "optimizer": {"name": "AdamW", "lr": 3e-3},
    "batch_size": 32, "seed": 3, "checkpoint_every": 20, "publish": "last",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Serves a float64 classifier as "fashion", NormAndDropout as "noisy", and "frames"."""
    directory = tmp_path_factory.mktemp("jobs")
    training_models.export_model(directory / "models/fashion", "net", "torchscript")
    durable.export_noisy(directory / "models/noisy")
    export_price(directory / "models/price")
    training_models.export_model(directory / "models/frames", "frames", "torchscript")
    with jobs.serving(directory) as server:
        write_tables(server)
        yield server


@pytest.fixture(autouse=True)
def cancel_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends the jobs that a test left on the shared server."""
    yield
    if "server" in request.fixturenames:
        with durable.connect(request.getfixturevalue("server")) as client:
            left = client.jobs.list_jobs(states=["QUEUED", "RUNNING", "PAUSED"])
            for info in left:
                client.jobs.get(info.id).cancel()
            wait_until(lambda: all(client.jobs.get(info.id).info().has_ended for info in left))


def export_price(directory: Path) -> None:
    price = torch.nn.Sequential(torch.nn.Linear(FEATURES, 1), torch.nn.Flatten(0))
    models.export(directory, price, inputs=[torch.zeros(1, FEATURES)])


def write_tables(server: JobServer) -> None:
    jobs.write_table(server.tables / "train.parquet", ROWS, np.float64, 10, CLASSES)
    jobs.write_table(server.tables / "test.parquet", TEST_ROWS, np.float64, 10, CLASSES)
    jobs.write_table(server.tables / "long.parquet", LONG_ROWS, np.float32, FEATURES, CLASSES)


def published(server: JobServer, model: str, version: int) -> dict[str, np.ndarray]:
    return durable.weights_in(server.data / "models" / model / str(version))


def train(client: braid.Client, **options: Any) -> braid.Job:
    given: dict[str, Any] = {
        "data": DATA, "loss": "cross_entropy", "optimizer": SGD, "batch_size": 7, "steps": 5,
    }  # fmt: skip
    return client.jobs.train("fashion", **{**given, **options})


def endless(client: braid.Client, **options: Any) -> braid.Job:
    """Starts a training job that no test waits for."""
    return client.jobs.train("noisy", **{**NOISY, "epochs": 100_000, "publish": None, **options})


def wait_for_step(job: braid.Job, step: int) -> None:
    wait_until(lambda: job.info().progress.step >= step or job.info().has_ended)
    assert not job.info().has_ended, job.info()


def test_trains_on_a_table_and_scores_another(server: JobServer, tmp_path: Path) -> None:
    for name, text in (("train", TRAIN), ("infer", INFER)):
        (tmp_path / f"{name}.yaml").write_text(text)
    trained = jobs.braid_json(server, "jobs", "submit", str(tmp_path / "train.yaml"), "--wait")
    assert trained["state"] == "SUCCEEDED"
    assert trained["metrics"].keys() == {"accuracy", "loss"}
    scored = jobs.braid_json(server, "jobs", "submit", str(tmp_path / "infer.yaml"), "--wait")
    assert (scored["state"], scored["rows"]) == ("SUCCEEDED", TEST_ROWS)
    assert scored["output"] == str(server.outputs / "scores.parquet")
    assert [path.name for path in server.outputs.iterdir()] == ["scores.parquet"]
    test, scores = pq.read_table(server.tables / "test.parquet"), pq.read_table(scored["output"])
    assert scores.column_names == ["id", "label", "logits"]
    assert scores.select(["id", "label"]).equals(test.select(["id", "label"]))
    logits = tensor_of(scores, "logits")
    accuracy = (logits.argmax(1) == tensor_of(test, "label")).mean()
    assert accuracy == pytest.approx(trained["metrics"]["accuracy"])
    assert accuracy > 0.4  # 0.2 without training
    with braid.connect(server.address) as client:
        served = client.infer(
            "fashion", {"x": tensor_of(test, "image")}, version=trained["version"]
        )
    np.testing.assert_allclose(logits, served["output__0"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options, order", [
    ({}, {}),
    ({"shuffle": False}, {"shuffle": False}),
    ({"drop_last": True, "data": {**DATA, "split": {"validation": 0.25}}},
     {"drop_last": True, "validation": 0.25}),
    ({"data": {**DATA, "weights": "weight"}}, {"weights": "weight"}),
], ids=["shuffled", "in order", "split", "weighted"])  # fmt: skip
def test_200_steps_equal_pytorch(
    server: JobServer, client: braid.Client, options: dict, order: dict
) -> None:
    table = pq.read_table(server.tables / "train.parquet")
    if "weights" in order:
        order = {"weights": tensor_of(table, "weight")}
    x, y = torch.tensor(tensor_of(table, "image")), torch.tensor(tensor_of(table, "label"))
    rows = itertools.islice(jobs.batches(ROWS, 7, seed=5, **order), 200)
    wanted = Reference("net", SGD, "cross_entropy").train(
        ({"x": x[batch]}, {"target": y[batch]}) for batch in rows
    )
    job = train(
        client, steps=200, seed=5, version=1, stages=training.on(1), publish="last", **options
    )
    version = job.wait(timeout=SECONDS).result.version
    loss = job.metrics(["loss"])["loss"]
    assert loss.steps.tolist() == list(range(1, 201))
    actual = Run(loss.values.tolist(), published(server, "fashion", version))
    assert_equal_runs(actual, wanted, training.MANY_STEPS)


def test_loss_of_several_targets_takes_several_columns(
    server: JobServer, client: braid.Client
) -> None:
    frames = training.rows(ROWS, 5, 6)
    targets = {
        "tokens": 1 + training.classes(ROWS, 2, of=3),
        "count": 1 + training.classes(ROWS, of=2),
        "steps": 4 + training.classes(ROWS, of=2, seed=1),
    }
    row = pa.FixedSizeListArray.from_arrays(pa.array(frames.numpy().reshape(-1)), 6)
    tokens = pa.array(targets["tokens"].numpy().reshape(-1))
    table = pa.table({
        "audio": pa.FixedSizeListArray.from_arrays(row, 5),
        "text": pa.FixedSizeListArray.from_arrays(tokens, 2),
        **{name: targets[name].numpy() for name in ("count", "steps")},
    })  # fmt: skip
    pq.write_table(table, server.tables / "speech.parquet")
    columns = {"tokens": "text", "count": "count", "steps": "steps"}
    loss = {
        "name": "ctc", "target": "tokens", "target_lengths": "count", "input_lengths": "steps",
        "zero_infinity": True,
    }  # fmt: skip
    wanted = Reference("frames", SGD, loss).train(
        ({"x": frames[batch]}, {name: target[batch] for name, target in targets.items()})
        for batch in itertools.islice(jobs.batches(ROWS, 7, seed=5), 20)
    )
    job = client.jobs.train(
        "frames", loss=loss, optimizer=SGD, steps=20, batch_size=7, seed=5, publish="best",
        data={"path": "speech.parquet", "inputs": {"x": "audio"}, "targets": columns},
        evaluate={"path": "speech.parquet", "metrics": ["label_error_rate"], "every": "20 steps"},
        best_metric="label_error_rate", stages=training.on(2), loss_mode="per_replica",
    )  # fmt: skip
    result = job.wait(timeout=SECONDS).result
    losses = job.metrics(["loss"])["loss"].values.tolist()
    actual = Run(losses, published(server, "frames", result.version))
    assert_equal_runs(actual, wanted, training.MANY_STEPS)
    assert result.metrics["label_error_rate"] > 0
    with pytest.raises(braid.InvalidArgument, match="'count' is missing") as caught:
        client.jobs.check({
            "kind": "train", "model": "frames", "loss": loss, "optimizer": SGD, "steps": 20,
            "batch_size": 7,
            "data": {"path": "speech.parquet", "inputs": {"x": "audio"},
                     "targets": {"tokens": "text", "steps": "steps"}},
        })  # fmt: skip
    assert caught.value.field == "spec.train.data.targets"


def test_evaluates_on_the_rows_of_the_split(server: JobServer, client: braid.Client) -> None:
    job = train(
        client, steps=3, version=1, seed=5, publish="best", best_metric="accuracy",
        data={**DATA, "split": {"validation": 0.25}},
        evaluate={"every": "1 steps", "metrics": ["accuracy"], "batch_size": 4},
    )  # fmt: skip
    result = job.wait(timeout=SECONDS).result
    metrics = job.metrics(["evaluation/accuracy", "evaluation/loss"])
    best = metrics["evaluation/accuracy"].values.argmax()
    assert result.step == best + 1
    assert result.metrics == {
        name: metrics[f"evaluation/{name}"].values[best] for name in ("accuracy", "loss")
    }
    table = pq.read_table(server.tables / "train.parquet")
    held_out = sorted(set(range(ROWS)) - set(jobs.training_rows(ROWS, 0.25, 5)))
    x, y = tensor_of(table, "image")[held_out], tensor_of(table, "label")[held_out]
    logits = client.infer("fashion", {"x": x}, version=result.version)["output__0"]
    assert (logits.argmax(1) == y).mean() == pytest.approx(result.metrics["accuracy"])


def test_one_cycle_lasts_as_long_as_the_job(client: braid.Client) -> None:
    job = train(client, steps=5, schedule={"name": "OneCycleLR", "max_lr": 0.1})
    job.wait(timeout=SECONDS)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    wanted = []
    for _ in range(5):
        wanted.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    np.testing.assert_allclose(job.metrics(["lr"])["lr"].values, wanted, rtol=1e-12)


def test_starts_from_a_checkpoint_of_a_job(server: JobServer, client: braid.Client) -> None:
    def weights(**options: Any) -> dict[str, np.ndarray]:
        job = train(client, optimizer={"name": "SGD", "lr": 0.1}, publish="last", **options)
        return published(server, "fashion", job.wait(timeout=SECONDS).result.version)

    weights(steps=4, version=1, shuffle=False, id="first-half", batch_size=ROWS)
    continued = weights(steps=3, from_trainer="job-first-half", shuffle=False, batch_size=ROWS)
    durable.assert_same_bits(
        continued, weights(steps=7, version=1, shuffle=False, batch_size=ROWS)
    )


def test_clients_may_read_the_trainer_of_a_job_but_not_operate_it(client: braid.Client) -> None:
    job = endless(client)
    wait_for_step(job, 1)
    trainer = client.trainer(job.info().trainer)
    assert trainer.name == f"job-{job.id}"
    assert trainer.info().step > 0
    x, y = durable.batch(0)
    with pytest.raises(braid.FailedPrecondition):
        trainer.step(x, y)
    with pytest.raises(braid.FailedPrecondition, match="belongs to a job"):
        trainer.delete()


def test_same_submission_is_the_same_job(client: braid.Client) -> None:
    first = train(client, id="same").wait(timeout=SECONDS)
    assert train(client, id="same").wait(timeout=SECONDS) == first
    with pytest.raises(braid.AlreadyExists, match="id"):
        train(client, id="same", steps=6)
    assert [job.id for job in client.jobs.list_jobs() if job.id == "same"] == ["same"]


def test_dry_run_checks_without_a_job(client: braid.Client) -> None:
    before = client.jobs.list_jobs()
    spec = {"kind": "train", "model": "fashion", "data": DATA, "optimizer": SGD,
            "loss": "cross_entropy", "batch_size": 7, "epochs": 2}  # fmt: skip
    progress = client.jobs.check(spec).progress
    assert (progress.total_rows, progress.total_steps) == (2 * ROWS, 2 * 12)
    with pytest.raises(braid.NotFound, match="none.parquet"):
        client.jobs.check({**spec, "data": {**DATA, "path": "none.parquet"}})
    assert client.jobs.list_jobs() == before


def data(**changes: Any) -> dict:
    return {"data": {**DATA, **changes}}


@pytest.mark.parametrize("error, options, words", [
    (braid.NotFound, {"model": "none"}, ["'none'"]),
    (braid.NotFound, data(path="none.parquet"), ["spec.train.data.path", "'none.parquet'"]),
    (braid.InvalidArgument, data(path="../outside.parquet"), ["spec.train.data.path", "leaves"]),
    (braid.InvalidArgument, data(path="/etc/passwd"), ["spec.train.data.path", "leaves"]),
    (braid.InvalidArgument, data(path="link.parquet"), ["spec.train.data.path", "leaves"]),
    (braid.InvalidArgument, data(path="text.txt"), ["spec.train.data.path", "format"]),
    (braid.DataLoss, data(path="short.parquet"), ["spec.train.data.path", "short.parquet"]),
    (braid.InvalidArgument, data(inputs={"x": "none"}), ["spec.train.data.inputs[0]", "'none'"]),
    (braid.InvalidArgument, data(inputs={"z": "image"}), ["spec.train.data.inputs", "z", "x"]),
    (braid.InvalidArgument, data(inputs={"x": "name"}), ["spec.train.data.inputs[0]", "string"]),
    (braid.InvalidArgument, data(inputs={"x": "label"}), ["spec.train.data.inputs[0]", "INT64"]),
    (braid.InvalidArgument, data(inputs={"x": "weight"}), ["spec.train.data.inputs[0]", "10"]),
    (braid.InvalidArgument, data(path="long.parquet"), ["spec.train.data.inputs[0]", "FP32"]),
    (braid.InvalidArgument,
     data(path="long.parquet", inputs={"x": {"column": "image", "dtype": "FP64"}}),
     ["spec.train.data.inputs[0]", "20", "10"]),
    (braid.InvalidArgument, data(inputs={"x": {"column": "image", "dtype": "FP65"}}),
     ["spec.train.data.inputs[0].datatype", "FP65"]),
    (braid.InvalidArgument, data(targets={}), ["spec.train.data.targets", "target"]),
    (braid.InvalidArgument, data(targets={"target": "image"}),
     ["spec.train.data.targets", "FP64"]),
    (braid.InvalidArgument, data(weights="name"), ["spec.train.weight_column", "name"]),
    (braid.InvalidArgument, {"batch_size": 0}, ["spec.train.batch_size", "0"]),
    (braid.InvalidArgument, {"batch_size": 84, "drop_last": True}, ["spec.train.batch_size", "84"]),
    (braid.InvalidArgument, {"steps": 0}, ["spec.train.steps", "0"]),
    (braid.InvalidArgument, {"publish": "best"}, ["spec.train.publish", "evaluation"]),
    (braid.InvalidArgument, {"evaluate": {"every": "1 epoch"}}, ["spec.train.evaluation.path"]),
    (braid.InvalidArgument, {"version": 1, "from_trainer": "a"}, ["spec.train.from_trainer"]),
    (braid.InvalidArgument, {"id": "a/b"}, ["id", "'a/b'"]),
    (braid.InvalidArgument, {"priority": 101}, ["spec.priority", "101"]),
    (braid.InvalidArgument, {"tags": ["a"] * 17}, ["spec.tags", "17"]),
    (braid.InvalidArgument, {"optimizer": {"name": "SGD", "lr": -1.0}},
     ["spec.train.optimizer.sgd.lr", "-1"]),
    (braid.InvalidArgument, {"model": "price", "data": PRICES},
     ["spec.train.losses[0].output", "'output__0' has shape [-1]", "[rows, classes"]),
    (braid.InvalidArgument,
     {"model": "price", "data": PRICES, "loss": "mse",
      "evaluate": {"path": "long.parquet", "metrics": ["top_k"]}},
     ["spec.train.evaluation.metrics[0]", "'output__0' has shape [-1]"]),
    (braid.InvalidArgument, {"schedule": {"name": "StepLR"}},
     ["spec.train.options.schedule.step.step_size", "missing"]),
    (braid.InvalidArgument,
     {"schedule": {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 3}},
     ["spec.train.options.schedule.one_cycle.total_steps", "3 is less than the 5 steps"]),
    (braid.InvalidArgument, {"parameter_groups": [{"pattern": "nomatch", "lr": 1.0}]},
     ["spec.train.options.parameter_groups[0].pattern", "nomatch"]),
    (braid.InvalidArgument,
     {**data(split={"validation": 0.001}), "evaluate": {"metrics": ["accuracy"]}},
     ["spec.train.validation_split", "no rows for validation"]),
])  # fmt: skip
def test_wrong_jobs_are_rejected_by_field(
    server: JobServer, client: braid.Client, error: type, options: dict, words: list[str]
) -> None:
    outside = server.tables.parent / "outside.parquet"
    outside.write_bytes((server.tables / "train.parquet").read_bytes())
    (server.tables / "text.txt").write_text("text")
    (server.tables / "short.parquet").write_bytes(outside.read_bytes()[:1000])
    if not (server.tables / "link.parquet").is_symlink():
        (server.tables / "link.parquet").symlink_to(outside)
    options = {"model": "fashion", "data": DATA, "loss": "cross_entropy", "optimizer": SGD,
               "batch_size": 7, "steps": 5, **options}  # fmt: skip
    with pytest.raises(error) as caught:
        client.jobs.train(**options)
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize("error, output, words", [
    (braid.InvalidArgument, {"path": "../scores.parquet"}, ["spec.infer.output.path", "leaves"]),
    (braid.InvalidArgument, {"path": "scores.txt"}, ["spec.infer.output.path", ".parquet"]),
    (braid.InvalidArgument, {"path": "s.parquet", "keep": ["none"]},
     ["spec.infer.output.keep", "'none'"]),
    (braid.InvalidArgument, {"path": "s.parquet", "outputs": {"none": "y"}},
     ["spec.infer.output.outputs", "'none'", "output__0"]),
    (braid.InvalidArgument, {"path": "s.parquet", "keep": ["id"], "outputs": {"output__0": "id"}},
     ["'id'"]),
])  # fmt: skip
def test_wrong_outputs_are_rejected_by_field(
    client: braid.Client, error: type, output: dict, words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        client.jobs.infer("fashion", data=INPUTS, output=output)
    for word in words:
        assert word in caught.value.message


def test_existing_output_is_replaced_only_on_request(
    server: JobServer, client: braid.Client
) -> None:
    output = {"path": "twice.parquet", "keep": ["id"], "outputs": {}}
    client.jobs.infer("fashion", data=INPUTS, output=output).wait(timeout=SECONDS)
    first = pq.read_table(server.outputs / "twice.parquet")
    with pytest.raises(braid.AlreadyExists, match="spec.infer.output.path"):
        client.jobs.infer("fashion", data=INPUTS, output=output)
    again = {"path": "twice.parquet", "keep": ["label"], "overwrite": True}
    client.jobs.infer("fashion", data=INPUTS, output=again).wait(timeout=SECONDS)
    assert first.column_names == ["id", "output__0"]
    assert pq.read_table(server.outputs / "twice.parquet").column_names == ["label", "output__0"]


def test_formats_of_data_and_output(server: JobServer, client: braid.Client) -> None:
    """The same rows as CSV, Arrow IPC, arrays and a folder give the same scores."""
    table = pq.read_table(server.tables / "test.parquet")
    image = tensor_of(table, "image")
    columns = {f"x{i}": image[:, i] for i in range(10)}
    pa.csv.write_csv(pa.table({"id": table["id"], **columns}), server.tables / "test.csv")
    with pa.ipc.new_file(str(server.tables / "test.arrow"), table.schema) as file:
        file.write_table(table)
    np.savez(server.tables / "test.npz", image=image, id=tensor_of(table, "id"))
    folder = server.tables / "parts"
    folder.mkdir(exist_ok=True)
    pq.write_table(table.slice(0, 13), folder / "a.parquet")
    pq.write_table(table.slice(13), folder / "b.parquet")

    def score(path: str, output: str, column: str | list[str] = "image", **options: Any) -> Path:
        data = {"path": path, "inputs": {"x": {"column": column}}}
        given = {"path": output, "outputs": {"output__0": "y"}, **options}
        job = client.jobs.infer("fashion", data=data, output=given)
        return Path(job.wait(timeout=SECONDS).result.output)

    def assert_scores(actual: Any) -> None:
        np.testing.assert_allclose(np.array(actual), wanted, rtol=0, atol=1e-12)

    wanted = np.load(score("test.parquet", "scores.npy"))
    assert wanted.shape == (TEST_ROWS, CLASSES)
    assert_scores(np.load(score("test.npz", "npz.npy")))
    assert_scores(tensor_of(pq.read_table(score("parts", "folder.parquet")), "y"))
    lines = score("test.arrow", "scores.jsonl", keep=["id", "name"]).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["name"] for row in rows] == table["name"].to_pylist()
    assert_scores([row["y"] for row in rows])
    arrays = score("test.parquet", "arrays/", keep=["id"])
    assert_scores(np.load(arrays / "y.npy"))
    assert (np.load(arrays / "id.npy") == tensor_of(table, "id")).all()
    # A vector of several columns of numbers.
    assert_scores(np.load(score("test.csv", "csv.npy", column=[*columns])))
    assert client.data.get("test.csv").rows is None
    assert client.data.preview("test.csv", columns=["id"], rows=2).rows == [
        {"id": 1000}, {"id": 1001},
    ]  # fmt: skip


def test_data_is_listed(server: JobServer, client: braid.Client) -> None:
    listed = {entry.name: entry for entry in client.data.list_datasets()}
    assert listed["train.parquet"].bytes == (server.tables / "train.parquet").stat().st_size
    dataset = client.data.get("train.parquet")
    assert (dataset.format, dataset.rows) == ("Parquet", ROWS)
    assert {column.name: (column.datatype, column.shape) for column in dataset.columns} == {
        "id": ("INT64", ()), "name": ("", ()), "image": ("FP64", (10,)), "label": ("INT64", ()),
        "weight": ("FP64", ()),
    }  # fmt: skip
    [row] = client.data.preview("train.parquet", columns=["name", "label"], rows=1).rows
    assert row["name"] == "row 0"
    with pytest.raises(braid.InvalidArgument, match="leaves"):
        client.data.get("../outside.parquet")


def test_wrong_values_fail_the_job_by_row(server: JobServer, client: braid.Client) -> None:
    """Nulls are found when the job reads them, and labels out of range at their step."""
    table = pq.read_table(server.tables / "train.parquet")
    labels = table["label"].to_pylist()
    for name, value in (("range", 5), ("null", None)):
        wrong = pa.array([*labels[:50], value, *labels[51:]], pa.int64())
        changed = table.set_column(table.column_names.index("label"), "label", wrong)
        pq.write_table(changed, server.tables / f"{name}.parquet")
    job = train(client, data={**DATA, "path": "null.parquet"}, epochs=1, steps=None)
    with pytest.raises(braid.JobError, match="column 'label', row 50: null"):
        job.wait(timeout=SECONDS)
    job = train(client, data={**DATA, "path": "range.parquet"}, epochs=1, steps=None)
    with pytest.raises(braid.JobError, match="target.* 5 .*row 50 of the dataset"):
        job.wait(timeout=SECONDS)
    assert job.info().result is None


@pytest.mark.parametrize("kind", ["arrays", "tables"])
def test_data_that_changes_fails_the_job(
    server: JobServer, client: braid.Client, kind: str
) -> None:
    folder = server.tables / f"changing-{kind}"
    folder.mkdir()
    if kind == "arrays":
        random = np.random.default_rng(0)
        np.save(folder / "image.npy", random.standard_normal((2000, 10)))
        np.save(folder / "label.npy", random.integers(0, 5, 2000))
    else:
        jobs.write_table(folder / "a.parquet", ROWS, np.float64, 10, CLASSES)
    job = train(client, data={**DATA, "path": folder.name}, steps=10_000_000)
    wait_for_step(job, 1)
    if kind == "arrays":
        os.utime(folder / "image.npy", (1, 1))
    else:  # The job has read its table.
        jobs.write_table(folder / ".b.parquet", ROWS, np.float64, 10, CLASSES)
        (folder / ".b.parquet").rename(folder / "b.parquet")
    with pytest.raises(braid.JobError, match="changed"):
        job.wait(timeout=SECONDS)


def test_jobs_run_one_after_the_other_by_priority(client: braid.Client) -> None:
    running = endless(client, priority=1)
    wait_for_step(running, 1)
    low = train(client, priority=-1)
    middle = [train(client), train(client)]
    high = train(client, priority=1)
    assert {job.info().state for job in (low, *middle, high)} == {"QUEUED"}
    running.cancel()
    order = sorted(
        (low, *middle, high), key=lambda job: job.wait(timeout=SECONDS).started.timestamp()
    )
    assert [job.id for job in order] == [job.id for job in (high, *middle, low)]


def test_cancel(server: JobServer, client: braid.Client) -> None:
    running = endless(client)
    queued = train(client)
    wait_for_step(running, 1)
    assert queued.cancel().state == "CANCELLED"
    running.cancel()
    with pytest.raises(braid.JobError, match="CANCELLED"):
        running.wait(timeout=SECONDS)
    info = running.info()
    assert running.cancel().state == "CANCELLED"
    assert info.ended is not None
    assert server.checkpoints(info.trainer).exists()
    assert running.info() == info
    assert info.trainer not in [trainer.name for trainer in client.trainers()]
    running.delete()
    with pytest.raises(braid.NotFound):
        running.info()
    assert not server.checkpoints(info.trainer).exists()


def test_running_job_cannot_be_deleted(client: braid.Client) -> None:
    job = endless(client)
    wait_for_step(job, 1)
    with pytest.raises(braid.FailedPrecondition, match="RUNNING"):
        job.delete()


def test_list_filters_and_pages(client: braid.Client) -> None:
    made = [train(client, tags=["paged", f"n{n}"], id=f"paged-{n}") for n in range(5)]
    for job in made:
        job.wait(timeout=SECONDS)

    def ids(**options: Any) -> list[str]:
        return [info.id for info in client.jobs.list_jobs(**options)]

    newest = [f"paged-{n}" for n in (4, 3, 2, 1, 0)]
    assert ids(tag="paged") == newest
    assert ids(tag="paged", oldest_first=True, limit=2) == newest[:-3:-1]
    assert ids(tag="n3") == ["paged-3"]
    assert ids(tag="paged", states=["RUNNING", "QUEUED"]) == []
    assert ids(tag="paged", states=["SUCCEEDED"], model="fashion") == newest
    assert ids(tag="paged", model="noisy") == []
    method = braid.jobs.JOBS["ListJobs"]
    request = method.request(tag="paged", page_size=2)
    pages = []
    while len(pages) < 4:
        reply = client._channel.call(method, request)
        pages.append([job.id for job in reply.jobs])
        request.page_token = reply.next_page_token
        if not request.page_token:
            break
    assert pages == [newest[:2], newest[2:4], newest[4:]]


def test_watch_continues_after_any_event(client: braid.Client) -> None:
    job = train(client, steps=50)
    job.wait(timeout=SECONDS)
    events = [event for event in job.watch() if event.transition]
    assert [(event.transition.before, event.transition.state) for event in events] == [
        (None, "QUEUED"), ("QUEUED", "RUNNING"), ("RUNNING", "SUCCEEDED"),
    ]  # fmt: skip
    assert [event.number for event in events] == [1, 2, 3]
    for after in range(4):
        numbers = [event.number for event in job.watch(after=after) if event.transition]
        assert numbers == [1, 2, 3][after:]


def test_watch_follows_a_running_job(client: braid.Client) -> None:
    job = endless(client)
    steps = []
    for event in job.watch(timeout=SECONDS):
        # The job has no totals before it reads its data.
        if event.progress and event.progress.total_rows and event.progress.step not in steps:
            steps.append(event.progress.step)
            assert event.progress.total_rows == 100_000 * LONG_ROWS
            if len(steps) == 3:
                job.cancel()
    assert steps == sorted(steps)
    assert len(steps) >= 3
    assert job.info().state == "CANCELLED"


def test_metrics_and_logs(server: JobServer, client: braid.Client) -> None:
    job = train(
        client, steps=30, version=1, clip_grad_norm=1.0,
        schedule={"name": "StepLR", "step_size": 10, "gamma": 0.5},
        evaluate={"path": "test.parquet", "every": "10 steps", "metrics": ["accuracy"]},
    )  # fmt: skip
    job.wait(timeout=SECONDS)
    metrics = job.metrics()
    assert sorted(metrics) == [
        "evaluation/accuracy", "evaluation/loss", "gradient_norm", "loss", "lr",
    ]  # fmt: skip
    assert metrics["lr"].values.tolist() == 10 * [0.05] + 10 * [0.025] + 10 * [0.0125]
    assert metrics["evaluation/loss"].steps.tolist() == [10, 20, 30]
    assert job.metrics(["loss"], first_step=29)["loss"].steps.tolist() == [29, 30]
    lines = job.logs()
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    assert any("started at step 0 of 30" in line.text for line in lines)
    assert sum("evaluation at step" in line.text for line in lines) == 3
    assert job.logs(after=1) == lines[1:]
    printed = jobs.braid(server, "jobs", "metrics", job.id, "--name=lr").stdout
    assert json.loads(printed)["lr"]["steps"] == list(range(1, 31))


# Restarts.


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[JobServer]:
    """A server of its own, which a test may stop."""
    job_kills.prepare(tmp_path)
    with jobs.serving(tmp_path, max_running_jobs="3") as server:
        job_kills.write_table(server)
        yield server


def test_jobs_survive_kill_9(restarted: JobServer) -> None:
    """Weights and losses are those of undisturbed jobs, and each row is scored once."""
    moments = random.Random(1)
    with durable.connect(restarted) as client:
        wanted = job_kills.outcomes(restarted, job_kills.submit(client, "undisturbed", 1200))
        killed = job_kills.submit(client, "killed", 1200)
        kills = 0
        while kills < 2 and job_kills.kill(restarted, client, killed, moments):
            kills += 1
        outcomes = job_kills.outcomes(restarted, killed)
        assert job_kills.all_differences(outcomes, wanted) == []
        assert kills > 0
        assert sum(outcome.attempts for outcome in outcomes.values()) > len(killed)


def test_shutdown_returns_jobs_to_the_queue(restarted: JobServer) -> None:
    """They continue after the next start, and clients that watch them see no error."""
    with durable.connect(restarted) as client:
        wanted = job_kills.outcomes(restarted, job_kills.submit(client, "undisturbed", 250))
        stopped = job_kills.submit(client, "stopped", 250)
        job = stopped["adamw"]
        wait_for_step(job, 100)
        seen: list[str] = []
        watching = threading.Thread(
            target=lambda: seen.extend(
                event.transition.state for event in job.watch() if event.transition
            )
        )
        watching.start()
        restarted.stop()
        restarted.start()
        assert job_kills.all_differences(job_kills.outcomes(restarted, stopped), wanted) == []
        watching.join(timeout=SECONDS)
        assert seen == ["QUEUED", "RUNNING", "QUEUED", "RUNNING", "SUCCEEDED"]
        assert any("resumed at step" in line.text for line in job.logs())


def test_paused_and_preempted_jobs_equal_undisturbed_ones(tmp_path: Path) -> None:
    """Weights and losses have the same bits, and each row is scored once. A paused job stays paused
    over a restart."""
    job_kills.prepare(tmp_path)
    steps = 500
    with jobs.serving(tmp_path) as server, durable.connect(server) as client:
        job_kills.write_table(server, LONG_ROWS)
        jobs.write_table(server.tables / "other.parquet", ROWS, np.float32, FEATURES, CLASSES)
        wanted = job_kills.outcomes(server, job_kills.submit(client, "undisturbed", steps))
        disturbed = job_kills.submit(client, "disturbed", steps)
        assert disturbed["scores"].pause().state == "PAUSED"  # It waited for its turn.
        for name in job_kills.RECIPES:
            wait_until(lambda name=name: disturbed[name].info().progress.rows > 0)
            disturbed[name].pause()
            wait_until(lambda name=name: disturbed[name].info().state != "RUNNING")
        assert {job.info().state for job in disturbed.values()} == {"PAUSED"}
        info = disturbed["adamw"].info()
        assert 0 < info.progress.step < steps
        assert info.progress.durable_rows == info.progress.rows
        assert info.trainer not in [trainer.name for trainer in client.trainers()]
        server.stop()
        server.start()
        assert {job.info().state for job in disturbed.values()} == {"PAUSED"}
        for job in disturbed.values():
            job.resume()
        wait_for_step(disturbed["adamw"], info.progress.step + 1)
        urgent = client.jobs.infer(
            "noisy", data={"path": "other.parquet", "inputs": {"x": "image"}},
            output={"path": "urgent.parquet"}, priority=1,
        )  # fmt: skip
        urgent.wait(timeout=SECONDS)
        assert job_kills.all_differences(job_kills.outcomes(server, disturbed), wanted) == []
        reasons = [event.transition.reason for event in disturbed["adamw"].watch()
                   if event.transition]  # fmt: skip
        assert reasons[2:6] == [
            "paused by a user", "resumed by a user", "",
            f"preempted by job '{urgent.id}' of priority 1",
        ]  # fmt: skip
        with pytest.raises(braid.FailedPrecondition, match="SUCCEEDED"):
            urgent.pause()


def test_early_stopping_publishes_the_best_weights(client: braid.Client) -> None:
    job = train(
        client, steps=10_000, seed=5, version=1, publish="best",
        optimizer={"name": "SGD", "lr": 2.0}, data={**DATA, "split": {"validation": 0.25}},
        evaluate={"every": "1 steps"}, early_stopping={"patience": 3},
    )  # fmt: skip
    info = job.wait(timeout=SECONDS)
    losses = job.metrics(["evaluation/loss"])["evaluation/loss"]
    last = losses.steps[-1]
    assert info.reason.startswith(f"stopped early at step {last} of 10000: no better 'loss'")
    assert (info.progress.step, info.progress.total_steps) == (last, last)
    assert info.progress.rows == info.progress.total_rows
    best = losses.values.argmin()
    assert (info.result.step, losses.steps[-1]) == (best + 1, best + 4)
    assert info.result.metrics["loss"] == losses.values[best]


def test_cancelled_inference_leaves_no_output(restarted: JobServer) -> None:
    with durable.connect(restarted) as client:
        output = {"path": "cancelled.parquet"}
        rows = 100_000
        jobs.write_table(restarted.tables / "many.parquet", rows, np.float32, FEATURES, CLASSES)
        data = {"path": "many.parquet", "inputs": {"x": "image"}}
        job = client.jobs.infer("noisy", data=data, output=output, batch_size=1)
        wait_until(lambda: job.info().progress.rows > 0 or job.info().has_ended)
        job.cancel()
        wait_until(lambda: job.info().has_ended)
        assert job.info().state == "CANCELLED"
        assert list(restarted.outputs.iterdir()) == []
        job = client.jobs.infer("noisy", data=data, output=output)
        assert job.wait(timeout=SECONDS).result.rows == rows


def test_server_without_data_directory_says_so(tmp_path: Path) -> None:
    durable.export_noisy(tmp_path / "models/noisy")
    with jobs.serving(tmp_path, data_dir=None) as server, durable.connect(server) as client:
        with pytest.raises(braid.FailedPrecondition, match="data_dir"):
            client.jobs.list_jobs()


def test_damaged_job_store_is_kept_and_the_server_serves(restarted: JobServer) -> None:
    with durable.connect(restarted) as client:
        client.jobs.list_jobs()
        restarted.stop()
        store = restarted.data / "jobs.sqlite"
        damaged = b"damaged" * 1000
        store.write_bytes(damaged)
        restarted.start()
        with pytest.raises(braid.FailedPrecondition, match=store.name):
            client.jobs.list_jobs()
        assert store.read_bytes() == damaged
        assert client.is_ready("noisy")
