"""A server runs models exported with other PyTorch versions, and continues with the state of a
release on another version."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import oracle
from e2e.support.server import Server
from e2e.support.upgrade import ARCHIVES, PROGRAM, STEPS, TRAINED, batch
from safetensors.torch import load_file
from torch import nn

STATES = sorted(path.name for path in ARCHIVES.glob("state-*.tar.xz"))
PACKAGES = sorted(path.name for path in ARCHIVES.glob("packages-*.tar.xz"))
CHECKPOINT, PUBLISHED, LAST = np.cumsum(STEPS)
# The versions of PyTorch may round differently.
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=[*STATES, *PACKAGES])
def archive(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def release(archive: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacks the archive: models/, and for STATES data/."""
    directory = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(ARCHIVES / archive) as contents:
        contents.extractall(directory)
    return directory


@pytest.fixture(scope="module")
def server(release: Path) -> Iterator[Server]:
    with Server(release / "models", "cpu*2", release, ("--cpu_threads=1",)) as server:
        yield server


@pytest.fixture(scope="module")
def upgraded(server: Server) -> Iterator[braid.Client]:
    with braid.connect(server.address) as client:
        yield client


class Reference:
    """PyTorch's training of a model of `release`, from its first weights."""

    def __init__(self, release: Path, model: str) -> None:
        module_class, format, optimizer = TRAINED[model]
        self._model = model
        self._module = module_class()
        version = release / "models" / model / "1"
        if format == "pair":
            self._module.load_state_dict(load_file(version / "model.safetensors"))
        else:
            self._module.load_state_dict(torch.jit.load(version / "model.pt").state_dict())
        self._optimizer = oracle.make_optimizer(self._module, optimizer)
        self._steps = 0

    def train(self, steps: int) -> list[float]:
        """Takes `steps` more steps on two replicas. Returns their losses."""
        self._module.train()
        losses = []
        for number in range(self._steps, self._steps + steps):
            inputs, target = batch(self._model, number)
            (x,) = (torch.from_numpy(value) for value in inputs.values())
            outputs = oracle.forward_in_chunks(self._module, x, replicas=2)
            loss = nn.functional.cross_entropy(outputs, torch.from_numpy(target))
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            losses.append(loss.item())
        self._steps += steps
        return losses

    def state(self) -> dict[str, np.ndarray]:
        return oracle.state_of(self._module)

    def outputs(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        self._module.eval()
        with torch.no_grad():
            return self._module(*(torch.from_numpy(value) for value in inputs.values())).numpy()


def assert_same_state(actual: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(actual[name], value, atol=TOLERANCE, err_msg=name)


def assert_serves(client: braid.Client, model: str, reference: Reference) -> None:
    inputs, _ = batch(model, 100)
    (actual,) = client.infer(model, inputs).values()
    np.testing.assert_allclose(actual, reference.outputs(inputs), atol=TOLERANCE)


@pytest.mark.parametrize("archive", STATES, indirect=True, scope="module")
@pytest.mark.parametrize("model", TRAINED)
def test_versions_checkpoints_and_trainers_survive_the_upgrade(
    upgraded: braid.Client, release: Path, model: str
) -> None:
    reference = Reference(release, model)
    reference.train(CHECKPOINT)
    at_checkpoint = reference.state()
    reference.train(PUBLISHED - CHECKPOINT)
    assert_serves(upgraded, model, reference)

    reference.train(LAST - PUBLISHED)
    trainer = upgraded.trainer(model)
    assert_same_state(trainer.state_dict(), reference.state())
    for number in (LAST, LAST + 1):
        inputs, target = batch(model, number)
        (loss,) = reference.train(1)
        assert trainer.step(inputs, {"target": target}).loss == pytest.approx(loss, abs=TOLERANCE)
    assert trainer.publish() == 3
    assert_serves(upgraded, model, reference)

    (saved,) = [each for each in trainer.list_checkpoints() if each.step == CHECKPOINT]
    trainer.restore_checkpoint(saved.name)
    assert_same_state(trainer.state_dict(), at_checkpoint)


@pytest.mark.parametrize("archive", PACKAGES, indirect=True, scope="module")
@pytest.mark.parametrize("model", TRAINED)
def test_packages_are_served_and_trained(
    upgraded: braid.Client, server: Server, release: Path, archive: str, model: str
) -> None:
    reference = Reference(release, model)
    assert_serves(upgraded, model, reference)
    _, format, optimizer = TRAINED[model]
    trainer = upgraded.create_trainer(model, loss="cross_entropy", optimizer=optimizer)
    for number in range(LAST):
        inputs, target = batch(model, number)
        (loss,) = reference.train(1)
        assert trainer.step(inputs, {"target": target}).loss == pytest.approx(loss, abs=TOLERANCE)
    assert_same_state(trainer.state_dict(), reference.state())
    trainer.publish()
    assert_serves(upgraded, model, reference)
    own = archive == f"packages-{torch.__version__.partition('+')[0]}.tar.xz"
    tested = [line for line in server.log.splitlines() if f"/{model}/1/model.pt2: exported" in line]
    assert len(tested) == (format == "pair" and not own)
    assert all("passes its self-test" in line for line in tested)


def test_program_is_served(upgraded: braid.Client, release: Path) -> None:
    inputs, _ = batch(PROGRAM, 0)
    program = torch.export.load(release / "models" / PROGRAM / "1" / "model.pt2")
    with torch.no_grad():
        wanted = program.module()(torch.from_numpy(inputs["x"])).numpy()
    (actual,) = upgraded.infer(PROGRAM, inputs).values()
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)

