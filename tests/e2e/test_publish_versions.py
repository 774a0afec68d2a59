"""Published versions: origin, durability, and rollback to older versions."""

from __future__ import annotations

import itertools
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import durable, models, structured_models
from e2e.support.durable import DurableServer, batch
from e2e.support.inference import infer, outputs_of
from e2e.support.protocol import Stub, channel, message
from e2e.support.raw_trainer import RawTrainer
from tritonclient.utils import InferenceServerException

SECONDS = 60
X = batch(0)[0]["x"]
SGD = {"name": "SGD", "lr": 0.5}
SCALED_CONFIG = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


@pytest.fixture
def server(tmp_path: Path, format: str) -> Iterator[DurableServer]:
    """One server for each test, because publications persist."""
    with durable.serving(tmp_path, format=format) as server:
        yield server


def create(client: braid.Client, name: str = "publisher", **options) -> braid.Trainer:
    options = {"loss": "cross_entropy", "optimizer": SGD, **options}
    return client.create_trainer("noisy", name=name, **options)


def step(trainer: braid.Trainer, *numbers: int) -> None:
    for number in numbers:
        trainer.step(*batch(number))


def outputs(client: braid.Client, version: int | None = None) -> bytes:
    """Returns the bytes of the served outputs."""
    (values,) = client.infer("noisy", {"x": X}, version=version).values()
    return values.tobytes()


def served_version(server: DurableServer) -> int:
    with triton.InferenceServerClient(server.address) as stock:
        return int(infer(stock, "noisy", {"x": X}).get_response().model_version)


def publish(client: braid.Client, trainer: braid.Trainer, count: int) -> dict[int, bytes]:
    """Publishes `count` durable versions, each after another step. Returns the reply of each to X."""
    versions = {}
    for number in range(count):
        step(trainer, number)
        version = trainer.publish(wait_durable=True)
        versions[version] = outputs(client)
    assert len(set(versions.values())) == count, "the versions give the same outputs"
    return versions


def parameters(server: DurableServer) -> dict[str, str]:
    """Returns the parameters of the served ModelConfig."""
    with channel(server.address) as connection:
        stub = Stub(connection, "inference.GRPCInferenceService")
        config = stub.ModelConfig(message("inference.ModelConfigRequest")(name="noisy")).config
    return {name: value.string_value for name, value in config.parameters.items()}


def origin(server: DurableServer) -> tuple[str, ...]:
    told = parameters(server)
    return tuple(
        next((value for name, value in told.items() if name.endswith(key)), "")
        for key in ("trainer", "step", "checkpoint")
    )


def test_folder_that_conflicts_with_a_published_version_is_reported(
    server: DurableServer, client: braid.Client, tmp_path: Path
) -> None:
    versions = publish(client, create(client), 1)
    model = tmp_path / "models" / "noisy"
    shutil.copytree(model / "1", model / "2")
    server.start_again(signal.SIGTERM)
    assert outputs(client) == versions[2]
    (line,) = [line for line in server.log.splitlines() if "is not served" in line]
    for told in (f"'{model / '2'}/", "version 2", "trainer 'publisher'", "rename it to 3"):
        assert told in line
    (model / "2").rename(model / "3")
    server.start_again(signal.SIGTERM)
    assert served_version(server) == 3


def test_configuration_has_the_origin_of_a_version(
    server: DurableServer, client: braid.Client
) -> None:
    assert origin(server) == ("", "", "")
    trainer = create(client)
    step(trainer, 0, 1)
    trainer.publish(wait_durable=True)
    assert origin(server) == ("publisher", "2", "")
    assert client.model_metadata("noisy").origin["durability"] == "durable"
    step(trainer, 2)
    saved = trainer.save_checkpoint()
    trainer.publish(wait_durable=True)
    wanted = ("publisher", "3", saved.name)
    assert origin(server) == wanted
    told = client.model_metadata("noisy").origin
    assert (told["trainer"], told["step"], told["checkpoint"]) == wanted
    server.start_again()
    assert origin(server) == wanted
    client.rollback("noisy", 2)
    assert origin(server) == ("publisher", "2", "")
    client.rollback("noisy", 1)
    assert origin(server) == ("", "", "")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_versions_survive_a_restart(
    server: DurableServer, client: braid.Client, ending: signal.Signals
) -> None:
    versions = publish(client, create(client), 3)
    server.start_again(ending)
    assert served_version(server) == 4
    assert outputs(client) == versions[4]
    assert client.trainer("publisher").publish() == 5


def test_rollback_serves_an_older_version(server: DurableServer, client: braid.Client) -> None:
    """Also after a restart, until the next publication, which gets the next number."""
    first = outputs(client)
    trainer = create(client)
    versions = {1: first, **publish(client, trainer, 3)}
    trainer.save_checkpoint()
    served = 4
    for version in (2, 1, 3, 4, 2):
        assert client.rollback("noisy", version) == served
        served = version
        assert served_version(server) == version
        assert outputs(client) == versions[version]
        server.start_again()
        assert served_version(server) == version
        assert outputs(client) == versions[version]
    assert client.rollback("noisy", 2) == 2
    trainer = client.trainer("publisher")
    step(trainer, 3)
    assert trainer.publish(wait_durable=True) == 5
    server.start_again()
    assert served_version(server) == 5


def test_new_trainer_starts_from_the_served_version(
    server: DurableServer, client: braid.Client
) -> None:
    publish(client, create(client), 2)
    client.rollback("noisy", 2)
    second = create(client, "second")
    assert second.info().base_version == 2
    # The trainer keeps it after a restart, even if another version is served.
    client.rollback("noisy", 3)
    server.start_again()
    bases = {info.name: info.base_version for info in client.trainers()}
    assert bases == {"publisher": 1, "second": 2}


def test_rollback_to_missing_version_is_rejected(
    server: DurableServer, client: braid.Client
) -> None:
    versions = publish(client, create(client), 2)
    with pytest.raises(braid.NotFound) as caught:
        client.rollback("noisy", 7)
    assert "7" in caught.value.message
    assert "1, 2, 3" in caught.value.message
    with pytest.raises(braid.NotFound, match="no-such-model"):
        client.rollback("no-such-model", 1)
    for version in (0, -1):
        with pytest.raises(ValueError, match=f"version: {version} "):
            client.rollback("noisy", version)
    assert outputs(client) == versions[3]


def test_damaged_version_is_not_served(
    server: DurableServer, client: braid.Client, format: str
) -> None:
    versions = publish(client, create(client), 3)
    file = {"torchscript": "model.pt", "pair": "model.safetensors"}[format]
    path = server.data / "models/noisy/2" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(braid.DataLoss, match=file):
        client.rollback("noisy", 2)
    assert outputs(client) == versions[4]
    client.rollback("noisy", 3)
    server.start_again()
    assert outputs(client) == versions[3]


def test_publication_is_idempotent_after_a_crash(
    server: DurableServer, client: braid.Client
) -> None:
    """The trainer is rolled back and repeats the publication: one version, not two."""
    trainer = create(client, checkpoint_every=100, journal="none")
    step(trainer, 0, 1)
    assert trainer.publish(wait_durable=True) == 2
    published = outputs(client)
    server.start_again()
    assert client.trainer("publisher").info().applied_sequence == 0
    step(trainer, 2)
    assert trainer.info().applied_sequence == 4
    listed = [path.name for path in (server.data / "models/noisy").iterdir()]
    assert listed == ["2"]
    assert outputs(client) == published
    assert trainer.publish() == 3


def test_version_is_served_before_it_is_durable(
    server: DurableServer, client: braid.Client
) -> None:
    trainer = create(client)
    step(trainer, 0)
    version = trainer.publish()
    assert served_version(server) == version
    deadline = time.monotonic() + SECONDS
    while client.list_versions("noisy")[-1].durability != "durable":
        assert time.monotonic() < deadline
    assert (server.data / "models/noisy" / str(version) / "manifest.json").exists()
    metric = f'braid_version_writes_total{{model="noisy",outcome="durable"}} 1'
    assert metric in urllib.request.urlopen(server.metrics_url).read().decode()


def test_replies_carry_version_and_training_step(
    server: DurableServer, client: braid.Client
) -> None:
    def reply() -> tuple[str, int | None]:
        with triton.InferenceServerClient(server.address) as stock:
            response = infer(stock, "noisy", {"x": X}, parameters={"report_step": True}).get_response()
        number = response.parameters.get("braid_training_step")
        return response.model_version, number and number.int64_param

    assert reply() == ("1", None)
    trainer = create(client)
    step(trainer, 0, 1, 2)
    trainer.publish(wait_durable=True)
    assert reply() == ("2", 3)
    result = client.infer_versioned("noisy", {"x": X})
    assert (result.version, result.training_step) == (2, 3)
    assert [values.tobytes() for values in result.outputs.values()] == [outputs(client)]
    server.start_again()
    assert reply() == ("2", 3)
    with pytest.raises(InferenceServerException, match="report_step"):
        with triton.InferenceServerClient(server.address) as stock:
            infer(stock, "noisy", {"x": X}, parameters={"report_step": "yes"})


def test_shutdown_waits_until_versions_are_written(
    server: DurableServer, client: braid.Client
) -> None:
    trainer = create(client)
    step(trainer, 0)
    assert trainer.publish() == 2
    published = outputs(client)
    server.start_again(signal.SIGTERM)
    assert served_version(server) == 2
    assert outputs(client) == published


def test_recorded_publication_survives_a_restart(
    server: DurableServer, client: braid.Client
) -> None:
    trainer = RawTrainer(server.address, "noisy", {"name": "cross_entropy"}, {"sgd": {}})
    request = trainer.request("Publish")
    version = trainer.apply("Publish").version
    client.trainer(trainer.name).save_checkpoint()
    server.start_again()
    with channel(server.address) as connection:
        reply = Stub(connection, "braid.v1.TrainingService").Publish(request)
    assert reply.status.replayed
    assert (reply.model, reply.version) == ("noisy", version)


def test_different_weights_get_a_new_version(server: DurableServer, client: braid.Client) -> None:
    """The trainer was restored, so its operations reuse sequence numbers."""
    trainer = create(client)
    start = trainer.save_checkpoint()
    step(trainer, 0)
    assert trainer.publish(wait_durable=True) == 2
    published = outputs(client)
    trainer.restore_checkpoint(start.name)
    step(trainer, 1)
    assert trainer.publish(wait_durable=True) == 3
    other = outputs(client)
    assert other != published
    client.rollback("noisy", 2)
    assert outputs(client) == published
    server.start_again()
    client.rollback("noisy", 3)
    assert outputs(client) == other


class Requester(threading.Thread):
    """Requests the same rows repeatedly until it is stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.replies: list[tuple[int, np.ndarray]] = []

    def run(self) -> None:
        try:
            with triton.InferenceServerClient(self._address) as client:
                while not self.stopping.is_set():
                    result = infer(client, "noisy", {"x": X})
                    version = int(result.get_response().model_version)
                    self.replies.append((version, result.as_numpy("output__0")))
        except BaseException as error:
            self.error = error

    def wait_for_version(self, version: int) -> None:
        deadline = time.monotonic() + SECONDS
        while not self.replies or self.replies[-1][0] != version:
            assert self.error is None
            assert time.monotonic() < deadline


def test_requests_during_version_changes(server: DurableServer, client: braid.Client) -> None:
    """No request fails, and each reply comes from one version."""
    wanted = {1: np.frombuffer(outputs(client), np.float32)}
    requesters = [Requester(server.address) for _ in range(4)]
    for requester in requesters:
        requester.start()
        requester.wait_for_version(1)
    trainer = create(client)

    def change(version: int) -> None:
        for requester in requesters:
            requester.wait_for_version(version)

    for number in range(4):
        step(trainer, number)
        version = trainer.publish()
        wanted[version] = np.frombuffer(outputs(client), np.float32)
        change(version)
        for back in (1, version - 1, version):
            client.rollback("noisy", back)
            change(back)
    for one, other in itertools.combinations(wanted.values(), 2):
        assert np.abs(one - other).max() > 1e-2, "the versions give the same outputs"
    for requester in requesters:
        requester.stopping.set()
        requester.join(SECONDS)
        assert requester.error is None
        assert {version for version, _ in requester.replies} == set(wanted)
        for version, values in requester.replies:
            # In a merged batch, the same rows may differ in the last bit.
            np.testing.assert_allclose(values.ravel(), wanted[version], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [None, SCALED_CONFIG], ids=["derived", "config"])
def test_rollback_of_a_model_with_number_inputs(tmp_path: Path, config: str | None) -> None:
    """Numbers are inputs of the served configuration and of the loaded file."""
    x = np.ones((2, 2), np.float32)
    inputs = [torch.zeros(1, 2), 1, 1.0, False] if config is None else None
    for version in (1, 2):
        module = structured_models.scaled()
        module.linear.bias.data.fill_(version)
        models.export(
            tmp_path / "models/scaled", module, inputs=inputs, config=config, version=version
        )
    with DurableServer(tmp_path / "models", "cpu*2", tmp_path / "run") as server:
        with braid.connect(server.address) as client, triton.InferenceServerClient(
            server.address
        ) as stock:
            name = client.model_metadata("scaled").inputs[0].name
            newest = infer(stock, "scaled", {name: x}, parameters={"power": 1, "negate": True})
            assert client.rollback("scaled", 1) == 2
            older = infer(stock, "scaled", {name: x}, parameters={"power": 1, "negate": True})
    assert older.get_response().model_version == "1"
    (new,), (old,) = outputs_of(newest).values(), outputs_of(older).values()
    np.testing.assert_allclose(old, new + 1, atol=1e-6)


def test_origin_does_not_name_an_undone_checkpoint(
    server: DurableServer, client: braid.Client
) -> None:
    """The checkpoint has the state's number, but other weights."""
    trainer = create(client)
    step(trainer, 0, 1)
    early = trainer.save_checkpoint()
    step(trainer, 2, 3)
    trainer.save_checkpoint()
    trainer.restore_checkpoint(early.name)
    step(trainer, 4, 5)
    trainer.publish()
    assert origin(server) == ("publisher", "4", "")
    saved = trainer.save_checkpoint()
    trainer.publish()
    assert origin(server) == ("publisher", "4", saved.name)


def test_publication_after_a_restore_is_served(
    server: DurableServer, client: braid.Client
) -> None:
    """It has the number and the weights of a publication that was rolled back."""
    trainer = create(client)
    step(trainer, 0, 1)
    early = trainer.save_checkpoint()
    version = trainer.publish()
    served = outputs(client)
    client.rollback("noisy", 1)
    assert outputs(client) != served
    trainer.restore_checkpoint(early.name)
    assert trainer.publish() == version + 1
    assert served_version(server) == version + 1
    assert outputs(client) == served
