"""Jobs over images: folders, columns of bytes and lists of paths."""

from __future__ import annotations

import io
import json
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
from e2e.support import durable, jobs, models
from e2e.support.jobs import JobServer, tensor_of
from e2e.support.polling import wait_until
from PIL import Image
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SECONDS = 120
CLASSES = ("cat", "dog", "emu")
PER_CLASS = 8
TRANSFORMS: list[Any] = [
    {"resize": 12}, {"center_crop": 8}, "to_float", {"normalize": {"mean": [0.5], "std": [0.25]}},
]  # fmt: skip
RANDOM: list[Any] = [{"random_resized_crop": 8}, "random_horizontal_flip", "to_float"]
DECODE = {"image": {"transforms": TRANSFORMS}}
RECIPE: dict[str, Any] = {
    "loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9},
    "batch_size": 5, "epochs": 2, "seed": 3, "publish": "last",
}  # fmt: skip


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


def make_classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


def image_bytes(seed: int, size: tuple[int, int] = (20, 16), format: str = "JPEG") -> bytes:
    """A picture with one color for each class and noise."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 80, (*size, 3))
    pixels[..., seed % len(CLASSES)] += 120
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, format)
    return out.getvalue()


def write_folder(folder: Path) -> list[Path]:
    """Writes a folder for each class and returns the paths in the order of the rows."""
    paths = []
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for index in range(PER_CLASS):
            suffix, format = ((".jpg", "JPEG"), (".PNG", "PNG"), (".webp", "WEBP"))[index % 3]
            path = folder / name / f"{index}{suffix}"
            path.write_bytes(image_bytes(len(CLASSES) * index + label, (20 + index, 16), format))
            paths.append(path)
    return paths


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Serves a classifier of images, with the same images as a folder, a table and a list."""
    directory = tmp_path_factory.mktemp("images")
    models.export(directory / "models/net", make_classifier(), inputs=[torch.zeros(2, 3, 8, 8)])
    with jobs.serving(directory) as server:
        paths = write_folder(server.tables / "folder")
        labels = [CLASSES.index(path.parent.name) for path in paths]
        values = [path.read_bytes() for path in paths]
        relative = [str(path.relative_to(server.tables)) for path in paths]
        pq.write_table(pa.table({"image": values, "label": labels}), server.tables / "bytes.parquet")
        structs = [{"bytes": each, "path": "x.jpg"} for each in values]
        pq.write_table(pa.table({"image": structs, "label": labels}), server.tables / "hf.parquet")
        pa.csv.write_csv(
            pa.table({"file": relative, "label": labels}), server.tables / "list.csv"
        )
        yield server


def data(path: str, column: str = "image", **options: Any) -> dict[str, Any]:
    decode = options.pop("decode", DECODE)
    return {
        "path": path, "inputs": {"x": {"column": column, "decode": decode}},
        "targets": {"target": "label"}, **options,
    }  # fmt: skip


def inputs(path: str, **options: Any) -> dict[str, Any]:
    given = data(path, **options)
    del given["targets"]
    return given


def published(server: JobServer, info: braid.JobInfo) -> dict[str, np.ndarray]:
    return durable.weights_in(server.data / "models/net" / str(info.result.version))


def train(server: JobServer, client: braid.Client, **options: Any) -> dict[str, np.ndarray]:
    """Runs a training job from the initial weights and returns the published ones."""
    job = client.jobs.train("net", **{**RECIPE, "version": 1, **options})
    return published(server, job.wait(timeout=SECONDS))


def failure(job: braid.Job) -> str:
    """Waits for a job that must fail, and returns the reason."""
    with pytest.raises(braid.JobError):
        job.wait(timeout=SECONDS)
    return job.info().reason


def torch_transforms() -> v2.Compose:
    return v2.Compose([
        v2.PILToTensor(), v2.Resize(12), v2.CenterCrop(8),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3),
    ])  # fmt: skip


def test_training_on_a_folder_equals_pytorch(server: JobServer, client: braid.Client) -> None:
    actual = train(server, client, data=data("folder"))
    dataset = ImageFolder(server.tables / "folder", torch_transforms())
    model = make_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = jobs.batches(len(dataset), 5, seed=3)
    for _ in range(2 * 5):
        rows = [dataset[row] for row in next(batches)]
        loss = nn.functional.cross_entropy(
            model(torch.stack([image for image, _ in rows])), torch.tensor([y for _, y in rows])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(actual[name], value.numpy(), rtol=1e-4, atol=1e-5)


def test_folders_tables_and_lists_train_alike(server: JobServer, client: braid.Client) -> None:
    wanted = train(server, client, data=data("folder"))
    for each in (
        data("bytes.parquet"),
        data("hf.parquet"),
        data("list.csv", "file", decode={**DECODE, "paths": True}),
    ):
        durable.assert_same_bits(train(server, client, data=each), wanted)


def test_scores_a_folder_in_order(server: JobServer, client: braid.Client) -> None:
    info = client.jobs.infer(
        "net", version=1, data=inputs("folder"),
        output={"path": "scores.parquet", "keep": ["path", "label"]},
    ).wait(timeout=SECONDS)  # fmt: skip
    scores = pq.read_table(info.result.output)
    dataset = ImageFolder(server.tables / "folder", torch_transforms())
    paths = [str(Path(path).relative_to(server.tables / "folder")) for path, _ in dataset.samples]
    assert scores["path"].to_pylist() == paths
    assert scores["label"].to_pylist() == dataset.targets
    with torch.no_grad():
        wanted = make_classifier()(torch.stack([image for image, _ in dataset]))
    np.testing.assert_allclose(tensor_of(scores, "output__0"), wanted, rtol=1e-4, atol=1e-5)


def test_evaluates_without_random_transforms(server: JobServer, client: braid.Client) -> None:
    options = {
        **RECIPE, "version": 1, "data": data("folder", decode={"image": {"transforms": RANDOM}}),
        "evaluate": {"path": "bytes.parquet", "metrics": ["accuracy"]},
    }  # fmt: skip
    with pytest.raises(braid.InvalidArgument, match=r"inputs\[0\].evaluation_decode: missing"):
        client.jobs.train("net", **options)
    options["data"]["inputs"]["x"]["evaluation_decode"] = DECODE
    metrics = [
        client.jobs.train("net", **options).wait(timeout=SECONDS).result.metrics for _ in range(2)
    ]
    assert metrics[0] == metrics[1]
    assert metrics[0].keys() == {"loss", "accuracy"}


@pytest.fixture(scope="module")
def damaged(server: JobServer) -> str:
    """The folder with a file that is no image, one that is cut, and one with many pixels."""
    folder = server.tables / "damaged"
    paths = write_folder(folder)
    paths[3].write_bytes(b"no image")
    paths[9].write_bytes(paths[9].read_bytes()[:300])
    paths[18].write_bytes(image_bytes(2, (500, 600)))
    return folder.name


SMALL = {"image": {"transforms": TRANSFORMS, "max_pixels": 100_000}}
UNREADABLE = (3, 9, 18)


def test_a_job_fails_at_an_unreadable_image(
    client: braid.Client, damaged: str, server: JobServer
) -> None:
    job = client.jobs.infer(
        "net", data=inputs(damaged, decode=SMALL), output={"path": "fails.parquet"}
    )
    reason = failure(job)
    assert "column 'image', row 3: " in reason
    assert "(file 'cat/3.jpg')" in reason
    job = client.jobs.train("net", **{**RECIPE, "data": data(damaged, decode=SMALL)})
    assert "(file '" in failure(job)


def test_scoring_leaves_out_unreadable_images(
    client: braid.Client, damaged: str, server: JobServer
) -> None:
    job = client.jobs.infer(
        "net", version=1, data=inputs(damaged, decode=SMALL, on_unreadable="skip"),
        output={"path": "skips.parquet", "keep": ["path"]}, batch_size=4,
    )  # fmt: skip
    info = job.wait(timeout=SECONDS)
    rows = len(CLASSES) * PER_CLASS
    assert (info.result.rows, info.result.skipped_rows) == (rows - 3, 3)
    assert (info.progress.rows, info.progress.skipped_rows) == (rows, 3)
    scores = pq.read_table(info.result.output)
    dataset = ImageFolder(server.tables / damaged)
    kept = [Path(p).relative_to(server.tables / damaged) for p, _ in dataset.samples]
    kept = [path for row, path in enumerate(kept) if row not in UNREADABLE]
    assert scores["path"].to_pylist() == [str(path) for path in kept]
    log = "\n".join(line.text for line in job.logs())
    assert "left out: column 'image', row 18: image of " in log
    assert "expected at most max_pixels, 100000" in log


def test_training_leaves_out_unreadable_images(
    server: JobServer, client: braid.Client, damaged: str
) -> None:
    job = client.jobs.train(
        "net", **{**RECIPE, "data": data(damaged, decode=SMALL, on_unreadable="skip")}
    )
    info = job.wait(timeout=SECONDS)
    assert info.result.skipped_rows == 2 * 3
    assert job.metrics(["skipped_rows"])["skipped_rows"].values[-1] == 6
    alone = {**RECIPE, "batch_size": 1, "shuffle": False}
    job = client.jobs.train(
        "net", **{**alone, "data": data(damaged, decode=SMALL, on_unreadable="skip")}
    )
    reason = failure(job)
    assert "all 1 rows of batch 3 are unreadable" in reason


def test_killed_jobs_end_with_the_same_weights_and_rows(tmp_path: Path) -> None:
    models.export(tmp_path / "models/net", make_classifier(), inputs=[torch.zeros(2, 3, 8, 8)])
    random = {"image": {"transforms": RANDOM, "max_pixels": 100_000}}
    with jobs.serving(tmp_path) as server:
        for path in write_folder(server.tables / "folder")[:20:9]:
            path.write_bytes(b"no image")
        with durable.connect(server) as client:

            def submit(suffix: str) -> tuple[braid.Job, braid.Job]:
                options = {**RECIPE, "epochs": 40, "checkpoint_every": 7}
                options["data"] = data("folder", decode=random, on_unreadable="skip")
                return (
                    client.jobs.train("net", version=1, id=f"train-{suffix}", **options),
                    client.jobs.infer(
                        "net", version=1, id=f"score-{suffix}", batch_size=2,
                        data=inputs("folder", decode=SMALL, on_unreadable="skip"),
                        output={"path": f"{suffix}.parquet", "keep": ["path"]},
                    ),
                )  # fmt: skip

            wanted = [job.wait(timeout=SECONDS) for job in submit("whole")]
            killed = submit("killed")
            wait_until(lambda: killed[0].info().progress.step > 20)
            server.start_again()
            client.wait_ready(SECONDS)
            actual = [job.wait(timeout=SECONDS) for job in killed]
            assert actual[0].attempts > 1
            durable.assert_same_bits(published(server, actual[0]), published(server, wanted[0]))
            for one, other in zip(actual, wanted):
                assert one.result.skipped_rows == other.result.skipped_rows > 0
            tables = [pq.read_table(each[1].result.output) for each in (actual, wanted)]
            assert tables[0]["path"].equals(tables[1]["path"])


@pytest.mark.parametrize("given, message", [
    ({"x": "image"}, r"data.inputs\[0\]: column 'image' has type binary \(expected numbers, or dec"),
    ({"x": {"column": "image", "decode": {"image": {"channels": 1, "transforms": TRANSFORMS}}}},
     r"data.inputs\[0\].columns: a row of column 'image' is FP32 \[1, 8, 8\] \(expected FP32 \[3, "),
    ({"x": {"column": "image", "decode": {"image": {"transforms": [{"center_crop": 8}]}}}},
     r"data.inputs\[0\].decode: column 'image' is UINT8 \(expected FP32 for input 'x'; add to_float"),
    ({"x": {"column": "label", "decode": DECODE}},
     r"data.inputs\[0\]: column 'label' has type int64 \(expected bytes or strings"),
    ({"x": {"column": "image", "dtype": "FP32", "decode": DECODE}},
     r"data.inputs\[0\].datatype: given with decode"),
    ({"x": {"column": "class", "decode": DECODE}},
     r"data.inputs\[0\]: column 'class', row 0: "),
    ({"x": {"column": "class", "decode": {**DECODE, "paths": True}}},
     r"data.inputs\[0\]: column 'class', row 0: .*\(file 'cat'\)"),
])  # fmt: skip
def test_submission_finds_what_does_not_fit(
    client: braid.Client, given: dict[str, Any], message: str
) -> None:
    options = {**RECIPE, "data": {**data("folder"), "inputs": given}}
    with pytest.raises(braid.InvalidArgument, match=message):
        client.jobs.train("net", **options)


def test_lists_stay_inside_the_data_root(server: JobServer, client: braid.Client) -> None:
    (server.tables.parent / "secret.jpg").write_bytes(image_bytes(1))
    pa.csv.write_csv(pa.table({"file": ["../secret.jpg"]}), server.tables / "outside.csv")
    given = inputs("outside.csv", column="file", decode={**DECODE, "paths": True})
    with pytest.raises(braid.InvalidArgument, match="leaves the data roots"):
        client.jobs.infer("net", data=given, output={"path": "outside.parquet"})


def test_shows_and_previews_folders(server: JobServer, client: braid.Client) -> None:
    preview = client.data.preview("folder", rows=2)
    assert preview.dataset.format == "images"
    assert preview.dataset.rows == len(CLASSES) * PER_CLASS
    assert [column.name for column in preview.dataset.columns] == ["image", "label", "class", "path"]
    row = preview.rows[1]
    assert (row["label"], row["class"], row["path"]) == (0, "cat", "cat/1.PNG")
    assert row["image"].endswith(" bytes)")
    shown = jobs.braid(server, "data", "show", "folder")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["format"] == "images"
