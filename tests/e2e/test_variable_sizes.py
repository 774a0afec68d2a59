"""Exported pairs whose inputs vary in size: inference and training at several sizes equal PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import durable, long_training, models, oracle, training
from e2e.support.long_training import Batch
from e2e.support.oracle import Run
from e2e.support.training import on
from torch import Tensor, nn
from torch.nn import functional

STEPS = 12
# Not divisible by 2 or 3.
ROWS = 11
LENGTHS = (5, 1, 16, 9)
ADAM = {"name": "Adam", "lr": 1e-2}


class Words(nn.Module):
    """Classifies a text by the mean of its words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.words(ids).mean(1))


class Encoder(nn.Module):
    """Returns the class of a sequence, and numbers for each of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.classifier = nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.layer(x, src_key_padding_mask=~mask)
        weights = mask.to(x.dtype)[..., None]
        return {
            "logits": self.classifier((hidden * weights).sum(1) / weights.sum(1)),
            "hidden": hidden,
        }


class Attention(nn.Module):
    """Takes two lengths, and returns attention weights of both."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(queries, keys, keys)


class Recurrent(nn.Module):
    """Classifies padded texts by the LSTM's state after their last word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.classifier = nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(ids))
        rows = torch.arange(ids.shape[0], device=ids.device)
        return self.classifier(states[rows, mask.sum(1) - 1])


class Images(nn.Module):
    """Classifies images whose height and width are even. It has batch norm, and two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.head = nn.Sequential(
            nn.ConvTranspose2d(4, 4, 2, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image))


MODELS: dict[str, type[nn.Module]] = {
    "words": Words,
    "encoder": Encoder,
    "attention": Attention,
    "recurrent": Recurrent,
    "images": Images,
}


def make(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]().double()


def inputs_of(name: str, rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + 100 * length + rows)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if name == "words":
        return {"ids": torch.randint(50, (rows, length), generator=generator)}
    if name == "recurrent":
        lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
        lengths[0] = length
        mask = (torch.arange(length) < lengths).long()
        return {"ids": torch.randint(1, 50, (rows, length), generator=generator) * mask, "mask": mask}
    if name == "encoder":
        mask = torch.rand(rows, length, generator=generator) < 0.7
        mask[:, 0] = True
        return {"x": numbers(rows, length, 8), "mask": mask}
    if name == "attention":
        return {"queries": numbers(rows, length, 8), "keys": numbers(rows, length // 2 + 3, 8)}
    return {"image": numbers(rows, 1, 2 * length + 2, 20)}


def export(repository: Path) -> None:
    height = 2 * torch.export.Dim("height", min=2, max=32)
    width = 2 * torch.export.Dim("width", min=2, max=32)
    dynamic = {
        "words": {"ids": {1: ("length", 1, 16)}},
        "encoder": {"x": {1: "length"}, "mask": {1: "length"}},
        "attention": {"queries": {1: "queries"}, "keys": {1: "keys"}},
        "recurrent": {"ids": {1: "length"}, "mask": {1: "length"}},
        "images": {"image": {2: height, 3: width}},
    }
    options = {"images": {"stages": [["features", "head"]]}, "words": {"precisions": ["bfloat16"]}}
    for name in MODELS:
        result = braid.export(
            make(name),
            inputs_of(name, 4, 7),
            repository / name,
            dynamic=dynamic[name],
            **{"precisions": [], **options.get(name, {})},
        )
        assert result.format == "pair"


@pytest.fixture(scope="module")
def client_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[int], braid.Client]]:
    directory = tmp_path_factory.mktemp("variable_sizes")
    export(directory / "models")
    with long_training.clients_of(directory / "models", directory / "run") as get:
        yield get


def outputs_in_pytorch(name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        result = make(name).eval()(**inputs)
    if isinstance(result, dict):
        return result
    tensors = result if isinstance(result, tuple) else (result,)
    return {f"output__{place}": tensor for place, tensor in enumerate(tensors)}


@pytest.mark.parametrize("name", MODELS)
def test_mixed_and_concurrent_sizes_equal_pytorch(
    client_of: Callable[[int], braid.Client], name: str
) -> None:
    """The server may merge requests of one size, but not of several."""
    client = client_of(3)
    requests = [
        inputs_of(name, rows, length, seed)
        for seed in range(3)
        for length in (*LENGTHS, 5)
        for rows in (1, 3)
    ]
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda given: client.infer(name, given), requests))
    for given, reply in zip(requests, replies):
        for output, wanted in outputs_in_pytorch(name, given).items():
            np.testing.assert_allclose(reply[output], wanted, rtol=0, atol=1e-12)


def test_metadata_has_dims_of_any_size(client_of: Callable[[int], braid.Client]) -> None:
    model = client_of(3).model_metadata("encoder")
    assert [(each.name, list(each.shape)) for each in model.inputs] == [
        ("x", [-1, -1, 8]),
        ("mask", [-1, -1]),
    ]
    assert [list(each.shape) for each in model.outputs] == [[-1, 3], [-1, -1, 8]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "words",
            lambda given: {"ids": given["ids"].repeat(1, 4)},
            r"shape: dim 1 of input 'ids' is 20 \(expected 1 to 16; model 'words' was exported",
        ),
        (
            "encoder",
            lambda given: given | {"mask": given["mask"][:, :3]},
            r"dim 1 of input '(x|mask)' is [35], but dim 1 of input '(x|mask)' is [35] "
            r"\(expected [35]: both depend on 'length'\)",
        ),
        (
            "images",
            lambda given: {"image": given["image"][:, :, :7]},
            r"dim 2 of input 'image' is 7 \(expected a multiple of 2, 4 to 64",
        ),
    ],
)
def test_other_sizes_are_rejected(
    client_of: Callable[[int], braid.Client],
    name: str,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    message: str,
) -> None:
    client, given = client_of(3), change(inputs_of(name, 2, 5))
    with pytest.raises(braid.InvalidArgument, match=message):
        client.infer(name, given)
    with training.new_trainer(client, name, loss="cross_entropy", optimizer=ADAM) as trainer:
        with pytest.raises(braid.InvalidArgument, match=message):
            trainer.step(given, {"target": torch.zeros(2, dtype=torch.int64)})


def batches(name: str) -> Iterator[Batch]:
    made = []
    for length in LENGTHS:
        given = inputs_of(name, ROWS, length)
        generator = torch.Generator().manual_seed(length)
        target = torch.randint(3, (ROWS,), generator=generator)
        targets = {"target": target}
        if name == "attention":
            targets["target"] = given["queries"].sin()
        made.append((given, targets))
    return long_training.cycle(made, STEPS)


def loss_of(name: str) -> Callable[[nn.Module, int, Batch], Tensor]:
    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        inputs, targets = batch
        outputs = module(**inputs)
        if name == "attention":
            return functional.mse_loss(outputs[0], targets["target"])
        logits = outputs["logits"] if name == "encoder" else outputs
        return functional.cross_entropy(logits, targets["target"])

    return loss


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batch": 2}, {"loss_mode": "per_replica"}],
    ids=["whole", "micro_batches", "per_replica"],
)
@pytest.mark.parametrize("name", MODELS)
def test_training_at_several_sizes_equals_pytorch(
    client_of: Callable[[int], braid.Client], name: str, options: dict, replicas: int
) -> None:
    if name == "images" and "micro_batch" in options:
        pytest.skip("batch norm sees each micro-batch alone")
    wanted = long_training.in_pytorch(make(name), batches(name), ADAM, loss_of(name))
    actual = long_training.on_server(
        client_of(replicas),
        name,
        batches(name),
        loss="mse" if name == "attention" else "cross_entropy",
        optimizer=ADAM,
        sync_batch_norm=name == "images",
        **options,
    )
    oracle.assert_equal_runs(actual, wanted, 1e-9)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_lstm_over_padded_texts_trains_as_in_pytorch(
    client_of: Callable[[int], braid.Client], replicas: int
) -> None:
    """Rows of a batch have different lengths, and each batch has another longest one."""
    wanted = long_training.in_pytorch(
        make("recurrent"), batches("recurrent"), ADAM, loss_of("recurrent")
    )
    actual = training.run(
        client_of(4), "recurrent", batches("recurrent"), replicas,
        loss="cross_entropy", optimizer=ADAM,
    )  # fmt: skip
    oracle.assert_equal_runs(actual, wanted, 1e-9)


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("name", ["words", "encoder", "recurrent", "images"])
def test_evaluation_at_several_sizes_equals_pytorch(
    client_of: Callable[[int], braid.Client], name: str, micro_batch: int | None
) -> None:
    given = list(batches(name))[: len(LENGTHS)]
    module = make(name).eval()
    with torch.no_grad():
        wanted = torch.stack([loss_of(name)(module, 1, batch) for batch in given]).mean().item()
    with training.new_trainer(
        client_of(3), name, loss="cross_entropy", optimizer=ADAM, micro_batch=micro_batch
    ) as trainer:
        result = trainer.evaluate(given, metrics=["accuracy"])
    assert result.rows == len(LENGTHS) * ROWS
    assert result.loss == pytest.approx(wanted, abs=1e-12)


def test_published_versions_and_restored_trainers_keep_the_sizes(tmp_path: Path) -> None:
    """Batches of several lengths are trained and served before and after kill -9."""
    dynamic = {"ids": {1: ("length", 1, 16)}}
    example = inputs_of("words", 4, 7)
    models.export_pair(tmp_path / "models" / "words", make("words"), example, dynamic=dynamic)
    wanted = long_training.in_pytorch(make("words"), batches("words"), ADAM, loss_of("words"))
    server = durable.DurableServer(tmp_path / "models", "cpu*2", tmp_path / "run")
    too_long = inputs_of("words", 2, 17)
    with server, durable.connect(server) as client:
        trainer = client.create_trainer("words", loss="cross_entropy", optimizer=ADAM)
        steps = list(batches("words"))
        losses = [trainer.step(*batch).loss for batch in steps[: STEPS // 2]]
        trainer.save_checkpoint()
        server.start_again()
        losses += [trainer.step(*batch).loss for batch in steps[STEPS // 2 :]]
        oracle.assert_equal_runs(Run(losses, trainer.state_dict()), wanted, 1e-9)
        version = trainer.publish()
        trainer.save_checkpoint()
        for _ in range(2):
            for length in LENGTHS:
                given = inputs_of("words", 3, length)
                served = client.infer("words", given, version=version)["output__0"]
                expected = trainer.forward(given, mode="eval").outputs["output__0"]
                np.testing.assert_allclose(served, expected, rtol=0, atol=1e-12)
            with pytest.raises(braid.InvalidArgument, match=r"is 17 \(expected 1 to 16; model"):
                client.infer("words", too_long, version=version)
            with pytest.raises(braid.InvalidArgument, match=r"is 17 \(expected 1 to 16; model"):
                trainer.step(too_long, {"target": torch.zeros(2, dtype=torch.int64)})
            trainer.save_checkpoint()
            server.start_again()


def test_stages_at_several_sizes_equal_pytorch(client_of: Callable[[int], braid.Client]) -> None:
    wanted = long_training.in_pytorch(make("images"), batches("images"), ADAM, loss_of("images"))
    actual = long_training.on_server(
        client_of(3),
        "images",
        batches("images"),
        loss="cross_entropy",
        optimizer=ADAM,
        sync_batch_norm=True,
        stages=[
            {"path": "features", "devices": ["cpu:0", "cpu:1"]},
            {"path": "head", "devices": ["cpu:2"]},
        ],
    )
    oracle.assert_equal_runs(actual, wanted, 1e-9)


def test_loss_of_every_element_takes_targets_of_the_same_length(
    client_of: Callable[[int], braid.Client],
) -> None:
    """The gathered output and the targets have another length in each step."""
    made = [(given, {"target": given["x"].cos()}) for given, _ in batches("encoder")]

    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        return functional.mse_loss(module(**batch[0])["hidden"], batch[1]["target"])

    wanted = long_training.in_pytorch(make("encoder"), iter(made), ADAM, loss)
    actual = long_training.on_server(
        client_of(3), "encoder", iter(made), loss={"name": "mse", "output": "hidden"}, optimizer=ADAM
    )
    oracle.assert_equal_runs(actual, wanted, 1e-9)


def test_client_side_loss_takes_another_size_in_each_step(
    client_of: Callable[[int], braid.Client],
) -> None:
    with training.new_trainer(
        client_of(3), "encoder", loss_mode="client", optimizer=ADAM, stages=on(2)
    ) as trainer:
        for length in LENGTHS:
            given = inputs_of("encoder", 5, length)
            outputs = trainer.forward(given, mode="train", keep_graph=True).outputs
            assert outputs["hidden"].shape == (5, length, 8)
            trainer.backward({"hidden": np.ones_like(outputs["hidden"])})
            trainer.optim_step()


def test_mixed_precision_trains_at_several_sizes(client_of: Callable[[int], braid.Client]) -> None:
    losses = long_training.on_server(
        client_of(3),
        "words",
        long_training.cycle(list(batches("words")), 4 * STEPS),
        loss="cross_entropy",
        optimizer=ADAM,
        precision="bfloat16",
    ).losses
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])


@pytest.mark.parametrize("size", [9, 17])
def test_config_may_fix_a_size_within_the_bounds(tmp_path: Path, size: int) -> None:
    given = inputs_of("words", 2, 9)
    folder = tmp_path / "models" / "words"
    dynamic = {"ids": {1: ("length", 1, 16)}}
    models.export_pair(folder, make("words"), inputs_of("words", 4, 7), dynamic=dynamic)
    config = (folder / "config.pbtxt").read_text().replace("dims: [ -1 ]", f"dims: [ {size} ]")
    (folder / "config.pbtxt").write_text(config)
    with long_training.clients_of(tmp_path / "models", tmp_path / "run") as get:
        if size > 16:
            with pytest.raises(braid.BraidError, match=r"configured as INT64\[rows, 17\]"):
                get(1).infer("words", given)
            return
        (actual,) = get(1).infer("words", given).values()
        wanted = outputs_in_pytorch("words", given)["output__0"]
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)
        with pytest.raises(braid.InvalidArgument, match=r"expected \[-1, 9\]"):
            get(1).infer("words", inputs_of("words", 2, 8))
