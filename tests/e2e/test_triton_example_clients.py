"""The calls that the example programs of Triton's client repository make, in their order, on servers
where shared memory can be registered and where it cannot."""

from __future__ import annotations

import json
import os
import queue
import secrets
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from e2e.support.inference import infer_input
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import Server
from e2e.support.triton_examples import EXAMPLES
from tritonclient.utils import InferenceServerException

FIRST = np.arange(16, dtype=np.int32)[None]
SECOND = np.ones((1, 16), np.int32)
WANTED = {"OUTPUT0": FIRST + SECOND, "OUTPUT1": FIRST - SECOND}
# Flags, and whether they allow registration of system shared memory. No server has a GPU.
SERVERS = {
    "off": ((), False),
    "allowed": (("--allow_client_shared_memory",), True),
    "explicit": (("--model_control_mode=explicit", "--load_model=simple"), False),
}


@pytest.fixture(scope="module")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """server_of(name): one of SERVERS."""
    directory = tmp_path_factory.mktemp("clients")
    EXAMPLES["simple"].write(directory / "models/simple")
    servers: dict[str, Server] = {}

    def get(name: str) -> Server:
        if name not in servers:
            flags, _ = SERVERS[name]
            run = directory / name
            no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
            servers[name] = Server(
                directory / "models", "cpu*2", run, flags, data=False, environment=no_gpu
            ).start()
        return servers[name]

    yield get
    for server in servers.values():
        server.stop()


@pytest.fixture
def client_of(
    server_of: Callable[[str], Server],
) -> Iterator[Callable[[str], triton.InferenceServerClient]]:
    clients: list[triton.InferenceServerClient] = []

    def get(name: str) -> triton.InferenceServerClient:
        clients.append(triton.InferenceServerClient(server_of(name).address))
        return clients[-1]

    yield get
    for client in clients:
        client.close()


def inputs() -> list[triton.InferInput]:
    return [infer_input("INPUT0", FIRST), infer_input("INPUT1", SECOND)]


def outputs() -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in WANTED]


def assert_outputs(result: triton.InferResult) -> None:
    for name, wanted in WANTED.items():
        np.testing.assert_array_equal(result.as_numpy(name), wanted)


@pytest.mark.parametrize("name", SERVERS)
def test_client_may_unregister_before_it_starts(
    client_of: Callable[[str], triton.InferenceServerClient], name: str
) -> None:
    client = client_of(name)
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    # Unregistering an unknown region is a no-op, as on a Triton server.
    client.unregister_system_shared_memory("nosuch")
    client.unregister_cuda_shared_memory("nosuch")
    for status in (client.get_system_shared_memory_status, client.get_cuda_shared_memory_status):
        with pytest.raises(InferenceServerException, match="'nosuch'") as caught:
            status("nosuch")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
    assert_outputs(client.infer("simple", inputs(), outputs=outputs()))


@pytest.mark.parametrize("name", SERVERS)
def test_only_registration_fails_without_shared_memory(
    client_of: Callable[[str], triton.InferenceServerClient], name: str
) -> None:
    client = client_of(name)
    _, allowed = SERVERS[name]
    words = "no GPU" if allowed else "allow_client_shared_memory"
    with pytest.raises(InferenceServerException, match=words) as caught:
        client.register_cuda_shared_memory("r", b"AAAA", 0, 64)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    if not allowed:
        with pytest.raises(InferenceServerException, match=words) as caught:
            client.register_system_shared_memory("r", "/r", 64)
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_objects_are_reused_with_and_without_shared_memory(
    client_of: Callable[[str], triton.InferenceServerClient],
) -> None:
    client = client_of("allowed")
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    size = FIRST.nbytes
    regions = {}
    for name in ("INPUT0", "INPUT1", *WANTED):
        key = f"/e2e_reuse_{os.getpid()}_{secrets.token_hex(4)}"
        regions[name] = shm.create_shared_memory_region(name, key, size)
        client.register_system_shared_memory(name, key, size)
    try:
        shm.set_shared_memory_region(regions["INPUT0"], [FIRST])
        shm.set_shared_memory_region(regions["INPUT1"], [SECOND])
        given, wanted = inputs(), outputs()
        for shared in (True, False, True):
            for tensor, array in zip(given, (FIRST, SECOND)):
                if shared:
                    tensor.set_shared_memory(tensor.name(), size)
                else:
                    tensor.set_data_from_numpy(array)
            for output in wanted:
                if shared:
                    output.set_shared_memory(output.name(), size)
                else:
                    output.unset_shared_memory()
            result = client.infer("simple", given, outputs=wanted)
            if not shared:
                assert_outputs(result)
            for name in WANTED if shared else ():
                shape = result.get_output(name).shape
                found = shm.get_contents_as_numpy(regions[name], np.int32, shape)
                np.testing.assert_array_equal(found, WANTED[name])
                del found  # A view of the region, which is closed.
        assert set(client.get_system_shared_memory_status().regions) == set(regions)
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
    finally:
        client.unregister_system_shared_memory()
        for region in regions.values():
            shm.destroy_shared_memory_region(region)


def test_health_and_metadata_with_headers(
    client_of: Callable[[str], triton.InferenceServerClient],
) -> None:
    client = client_of("off")
    headers = {"test": "1", "dummy": "2"}
    assert client.is_server_live(headers=headers) and client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.get_server_metadata().name
    metadata = client.get_model_metadata("simple", headers=headers)
    assert [list(tensor.shape) for tensor in metadata.inputs] == [[-1, 16]] * 2
    with pytest.raises(InferenceServerException, match="wrong_model_name") as caught:
        client.get_model_metadata("wrong_model_name")
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    assert client.get_model_config("simple").config.max_batch_size == 8


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer_and_statistics(
    client_of: Callable[[str], triton.InferenceServerClient], compression: str | None
) -> None:
    client = client_of("off")
    options = {"headers": {"test": "1"}, "compression_algorithm": compression}
    assert_outputs(client.infer("simple", inputs(), outputs=outputs(), **options))
    assert_outputs(client.infer("simple", inputs(), **options))
    (statistics,) = client.get_inference_statistics("simple").model_stats
    assert statistics.inference_stats.success.count > 0


@pytest.mark.parametrize(
    "options",
    [
        {"keepalive_options": triton.KeepAliveOptions(10_000, 5_000, True, 2)},
        {"channel_args": [("grpc.primary_user_agent", "me")]},
    ],
    ids=["keepalive", "channel_args"],
)
def test_channel_options(server_of: Callable[[str], Server], options: dict) -> None:
    with triton.InferenceServerClient(server_of("off").address, **options) as client:
        assert_outputs(client.infer("simple", inputs(), outputs=outputs()))


def test_async_infer(client_of: Callable[[str], triton.InferenceServerClient]) -> None:
    replies: queue.Queue = queue.Queue()
    client_of("off").async_infer(
        "simple",
        inputs(),
        callback=lambda result, error: replies.put((result, error)),
        outputs=outputs(),
        client_timeout=CALL_SECONDS,
    )
    result, error = replies.get(timeout=CALL_SECONDS)
    assert error is None
    assert_outputs(result)


def test_typed_contents_and_typed_with_raw_contents(
    server_of: Callable[[str], Server],
) -> None:
    stub = Stub(channel(server_of("off").address), "inference.GRPCInferenceService")
    request = message("inference.ModelInferRequest")(model_name="simple")
    for name, array in (("INPUT0", FIRST), ("INPUT1", SECOND)):
        tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        tensor.contents.int_contents.extend(array[0].tolist())
    for name in WANTED:
        request.outputs.add(name=name)
    reply = stub.ModelInfer(request)
    for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
        found = np.frombuffer(raw, np.int32).reshape(output.shape)
        np.testing.assert_array_equal(found, WANTED[output.name])
    request.raw_input_contents.append(FIRST[0, :8].tobytes())
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    # The example searches for these words.
    assert (
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model "
        "'simple'" in caught.value.details()
    )


def test_models_are_loaded_reconfigured_and_unloaded(
    client_of: Callable[[str], triton.InferenceServerClient],
) -> None:
    client = client_of("explicit")
    client.load_model("simple")
    assert client.is_model_ready("simple")
    # The example searches for "failed to load" in the errors.
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
    config = client.get_model_config("simple", as_json=True)["config"]
    client.load_model("simple", config=json.dumps({**config, "max_batch_size": 16}))
    assert client.get_model_config("simple").config.max_batch_size == 16
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("wrong_model_name")
    client.load_model("simple")
    assert_outputs(client.infer("simple", inputs(), outputs=outputs()))
