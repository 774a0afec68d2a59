"""Models with frozen parameters, such as LoRA models: training, memory, and download of the rest."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import transformers
from e2e.support import exports, oracle, training, training_models
from e2e.support.oracle import Run, assert_equal_runs
from e2e.support.server import Server
from e2e.support.training import MANY_STEPS, batches, classes, new_trainer, on, rows
from safetensors.numpy import load
from torch import Tensor, nn
from torch.nn import functional

ADAM = {"name": "Adam", "lr": 0.05}
STEPS = 5
ROWS = 11


def lora_batches() -> list[tuple[Tensor, Tensor]]:
    return [(rows(ROWS, 10, seed=s), classes(ROWS, seed=s)) for s in range(STEPS)]


def download_trainable(trainer: braid.Trainer) -> dict[str, np.ndarray]:
    file = io.BytesIO()
    assert trainer.download(file, trainable_only=True) == len(file.getvalue())
    return load(file.getvalue())


def frozen_names(module: nn.Module) -> set[str]:
    return {name for name, value in module.named_parameters() if not value.requires_grad}


@pytest.mark.parametrize("replicas", [1, 3])
def test_adapters_train_like_in_pytorch_and_the_rest_keeps_its_bits(
    trainers: braid.Client, replicas: int
) -> None:
    module = training_models.make("lora")
    before = oracle.state_of(module)
    frozen = frozen_names(module)
    wanted = oracle.train(module, lora_batches(), ADAM, "cross_entropy")
    actual = training.train(
        trainers, "lora", lora_batches(), ADAM, "cross_entropy", stages=on(replicas)
    )
    assert_equal_runs(actual, wanted, MANY_STEPS)
    changed = {name for name in before if actual.state[name].tobytes() != before[name].tobytes()}
    assert len(frozen) == 4
    assert changed == before.keys() - frozen


def test_download_of_the_adapters_has_the_names_that_peft_loads(trainers: braid.Client) -> None:
    with new_trainer(trainers, "lora", loss="cross_entropy", optimizer=ADAM) as trainer:
        trainer.step(*batches(1, ROWS)[0])
        state, adapters = trainer.state_dict(), download_trainable(trainer)
    assert sorted(adapters) == [
        f"base_model.model.{layer}.lora_{part}.weight" for layer in (0, 2) for part in "AB"
    ]
    for name, value in adapters.items():
        np.testing.assert_array_equal(value, state[name.replace(".weight", ".default.weight")])


def test_download_leaves_out_frozen_groups_and_buffers(
    trainers: braid.Client, tmp_path: Path
) -> None:
    groups = [{"pattern": "^backbone", "frozen": True}]
    with new_trainer(
        trainers, "backbone", loss="cross_entropy", optimizer=ADAM, parameter_groups=groups
    ) as trainer:
        trainer.step({"x": rows(8, 6)}, {"target": classes(8, of=4)})
        state = trainer.state_dict()
        trainer.download(tmp_path / "head.safetensors", trainable_only=True)
    module = training_models.make("backbone")
    head = {
        name: torch.from_numpy(value)
        for name, value in load((tmp_path / "head.safetensors").read_bytes()).items()
    }
    assert head.keys() == {"head.1.weight", "head.1.bias"}
    assert not module.load_state_dict(head, strict=False).unexpected_keys
    np.testing.assert_array_equal(module.head[1].weight.detach(), state["head.1.weight"])


@pytest.mark.parametrize(
    ("model", "groups"),
    [("lora", []), ("net", [{"pattern": r"layers\.[02]", "frozen": True}])],
    ids=["at export", "in a group"],
)
def test_frozen_parameters_take_no_memory(
    trainers: braid.Client, model: str, groups: list[dict]
) -> None:
    parameters = dict(training_models.make(model).named_parameters())
    trained_names = [
        name
        for name, value in parameters.items()
        if value.requires_grad and not (groups and name.startswith(("layers.0", "layers.2")))
    ]
    trained = sum(parameters[name].numel() * 8 for name in trained_names)
    assert len(trained_names) < len(parameters)
    padding = 64 * len(parameters)
    with new_trainer(
        trainers, model, stages=on(1), loss="cross_entropy", optimizer=ADAM,
        parameter_groups=groups,
    ) as trainer:  # fmt: skip
        (before,) = trainer.info().memory
        trainer.step(*batches(1, ROWS)[0])
        (after,) = trainer.info().memory
    # Values and gradients; then also Adam's two averages.
    assert 2 * trained <= before.current_bytes <= 2 * trained + 2 * padding
    averages = after.current_bytes - before.current_bytes
    assert 2 * trained <= averages <= 2 * trained + 2 * 64 * len(trained_names)


def make_bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=8, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).double()


def make_peft_model() -> nn.Module:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = make_bert()
    config = peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["query", "value"], modules_to_save=["classifier"],
        task_type="SEQ_CLS",
    )  # fmt: skip
    return peft.get_peft_model(base, config)


def sentences() -> list[tuple[dict[str, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(50, (ROWS, 8), generator=generator) for _ in range(STEPS)]
    return [
        ({"input_ids": each, "attention_mask": torch.ones_like(each)}, classes(ROWS, of=3, seed=s))
        for s, each in enumerate(ids)
    ]


@pytest.fixture(scope="module")
def peft_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    """A client of a server with a BERT that has a LoRA adapter of peft."""
    directory = tmp_path_factory.mktemp("peft")
    exports.export(make_peft_model(), sentences()[0][0], directory / "models/bert")
    with Server(directory / "models", "cpu*3", directory / "run", ("--cpu_threads=1",)) as server:
        with braid.connect(server.address) as client:
            yield client


def peft_reference() -> tuple[nn.Module, list[float]]:
    module = make_peft_model().train()
    stepper = oracle.make_optimizer(module, ADAM)
    losses = []
    for inputs, target in sentences():
        loss = functional.cross_entropy(module(**inputs).logits, target)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return module, losses


@pytest.mark.parametrize("replicas", [1, 3])
def test_peft_model_trains_and_peft_loads_the_download(
    peft_client: braid.Client, replicas: int, tmp_path: Path
) -> None:
    import peft

    start = make_peft_model()
    start.save_pretrained(tmp_path)  # with adapter_config.json
    with new_trainer(
        peft_client, "bert", loss="cross_entropy", optimizer=ADAM, stages=on(replicas)
    ) as trainer:
        losses = [trainer.step(inputs, {"target": y}).loss for inputs, y in sentences()]
        state = trainer.state_dict()
        trainer.download(tmp_path / "adapter_model.safetensors", trainable_only=True)

    module, wanted = peft_reference()
    names = set(dict(module.named_parameters()))
    actual = {name: value for name, value in state.items() if name in names}
    expected = {name: value.detach().numpy() for name, value in module.named_parameters()}
    assert_equal_runs(Run(losses, actual), Run(wanted, expected), MANY_STEPS)
    for name, value in start.named_parameters():
        assert np.array_equal(actual[name], value.detach()) != value.requires_grad, name

    loaded = peft.PeftModel.from_pretrained(make_bert(), tmp_path)
    parameters = dict(loaded.named_parameters())
    assert parameters.keys() == names
    for name, value in parameters.items():
        np.testing.assert_array_equal(value.detach(), actual[name], err_msg=name)
