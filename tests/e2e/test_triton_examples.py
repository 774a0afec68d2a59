"""Serves a repository like Triton's examples without changes. Outputs for every kind of
tritonclient call equal PyTorch's."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import queue
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from e2e.support.inference import assert_close, infer, infer_input
from e2e.support.model_control import index, reasons
from e2e.support.protocol import CALL_SECONDS
from e2e.support.server import Server
from e2e.support.triton_examples import EXAMPLES, LABELS, Example, write_all
from tritonclient.grpc import model_config_pb2

SERVED = {
    name: {"labelled": (1, 3), "newest": (2, 3)}.get(name, example.versions)
    for name, example in EXAMPLES.items()
}
EVERY_REQUEST = [
    (name, inputs) for name, example in EXAMPLES.items() for inputs in example.inputs
]
NAMES = pytest.mark.parametrize("name", EXAMPLES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("examples")
    write_all(directory / "models")
    with Server(
        directory / "models",
        "cpu*2",
        directory / "run",
        ("--cpu_threads=1", "--allow_client_shared_memory"),
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def tensors(inputs: dict[str, np.ndarray]) -> list[triton.InferInput]:
    return [infer_input(name, array) for name, array in inputs.items()]


def assert_outputs(
    result: triton.InferResult, name: str, inputs: dict[str, np.ndarray], version: int = 0
) -> None:
    """version: 0 is the newest."""
    answer = EXAMPLES[name].answer(inputs, version or SERVED[name][-1])
    assert {tensor.name for tensor in result.get_response().outputs} == set(answer)
    for output, wanted in answer.items():
        # Batches with other rows add in another order.
        assert_close(result.as_numpy(output), wanted, rtol=1e-4, atol=1e-5)


def test_every_example_is_served(client: triton.InferenceServerClient) -> None:
    assert index(client) == [
        (name, str(version), "READY")
        for name, versions in sorted(SERVED.items())
        for version in versions
    ]
    assert all(client.is_model_ready(name) for name in EXAMPLES)


@NAMES
def test_outputs_equal_pytorch(client: triton.InferenceServerClient, name: str) -> None:
    for inputs in EXAMPLES[name].inputs:
        assert_outputs(infer(client, name, inputs), name, inputs)


@pytest.mark.parametrize("name", ["labelled", "newest"])
def test_each_version_equals_pytorch(client: triton.InferenceServerClient, name: str) -> None:
    for version in SERVED[name]:
        for inputs in EXAMPLES[name].inputs:
            result = infer(client, name, inputs, model_version=str(version))
            assert_outputs(result, name, inputs, version)


def test_async_outputs_equal_pytorch(client: triton.InferenceServerClient) -> None:
    replies: queue.Queue = queue.Queue()
    for number, (name, inputs) in enumerate(EVERY_REQUEST):
        client.async_infer(
            name,
            tensors(inputs),
            callback=lambda result, error: replies.put((result, error)),
            request_id=str(number),
        )
    left = set(range(len(EVERY_REQUEST)))
    while left:
        result, error = replies.get(timeout=CALL_SECONDS)
        assert error is None
        number = int(result.get_response().id)
        left.remove(number)
        assert_outputs(result, *EVERY_REQUEST[number])


def test_stream_outputs_equal_pytorch(client: triton.InferenceServerClient) -> None:
    replies: queue.Queue = queue.Queue()
    client.start_stream(callback=lambda result, error: replies.put((result, error)))
    try:
        for name, inputs in EVERY_REQUEST:
            client.async_stream_infer(name, tensors(inputs))
        for name, inputs in EVERY_REQUEST:
            result, error = replies.get(timeout=CALL_SECONDS)
            assert error is None
            assert_outputs(result, name, inputs)
    finally:
        client.stop_stream()


def test_asyncio_outputs_equal_pytorch(server: Server) -> None:
    async def use() -> None:
        async with triton_aio.InferenceServerClient(server.address) as client:
            results = await asyncio.gather(
                *(client.infer(name, tensors(inputs)) for name, inputs in EVERY_REQUEST)
            )
            for result, (name, inputs) in zip(results, EVERY_REQUEST, strict=True):
                assert_outputs(result, name, inputs)

    asyncio.run(asyncio.wait_for(use(), CALL_SECONDS))


@pytest.mark.parametrize("name", ["resnet50", "reshaped", "bert"])
def test_shared_memory_equals_pytorch(client: triton.InferenceServerClient, name: str) -> None:
    """All inputs and outputs are consecutive in one region."""
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs[-1]
    answer = example.answer(inputs, 1)
    arrays = {**inputs, **{output: wanted.numpy() for output, wanted in answer.items()}}
    ends = np.cumsum([array.nbytes for array in arrays.values()]).tolist()
    places = {
        key: (array.nbytes, end - array.nbytes)
        for (key, array), end in zip(arrays.items(), ends, strict=True)
    }
    key = f"/e2e_examples_{os.getpid()}_{secrets.token_hex(4)}"
    region = shm.create_shared_memory_region("examples", key, ends[-1])
    try:
        client.register_system_shared_memory("examples", key, ends[-1])
        shm.set_shared_memory_region(region, list(inputs.values()))
        shared = tensors(inputs)
        for tensor in shared:
            tensor.set_shared_memory("examples", *places[tensor.name()])
        outputs = [triton.InferRequestedOutput(output) for output in answer]
        for output in outputs:
            output.set_shared_memory("examples", *places[output.name()])
        result = client.infer(name, shared, outputs=outputs)
        for output, wanted in answer.items():
            told = result.get_output(output)
            assert tuple(told.shape) == tuple(wanted.shape)
            found = shm.get_contents_as_numpy(
                region, wanted.numpy().dtype, told.shape, places[output][1]
            )
            assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            del found  # A view of the region, which is closed.
    finally:
        client.unregister_system_shared_memory("examples")
        shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize(
    ("name", "count", "labels"),
    [
        ("resnet50", 1000, []),
        ("densenet", 3, LABELS),
        ("inception", 99, LABELS),
        ("labelled", 2, LABELS),
    ],
)
def test_classes_and_their_labels(
    client: triton.InferenceServerClient, name: str, count: int, labels: list[str]
) -> None:
    """An unbatched model has one list of classes for scores of any dimensions."""
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs[-1]
    output = example.outputs[0]
    wanted = [triton.InferRequestedOutput(output, class_count=count)]
    texts = infer(client, name, inputs, outputs=wanted).as_numpy(output)
    scores = example.answer(inputs, SERVED[name][-1])[output].numpy()
    rows = scores if example.parsed.max_batch_size > 0 else scores.reshape(1, -1)
    count = min(count, rows.shape[1])
    assert texts.shape == ((len(rows), count) if example.parsed.max_batch_size > 0 else (count,))
    for row, found in zip(rows, texts.reshape(-1, count), strict=True):
        split = [text.decode().split(":") for text in found]
        classes = [int(parts[1]) for parts in split]
        assert len(set(classes)) == count
        # Sorted by score, not by class: scores may differ by less than rounding errors.
        np.testing.assert_allclose([float(parts[0]) for parts in split], row[classes], atol=1e-5)
        np.testing.assert_allclose(row[classes], np.sort(row)[::-1][:count], atol=1e-5)
        for parts, index_ in zip(split, classes, strict=True):
            assert parts[2:] == ([labels[index_]] if index_ < len(labels) else [])


@NAMES
def test_metadata_matches_the_configuration(
    client: triton.InferenceServerClient, name: str
) -> None:
    config = EXAMPLES[name].parsed
    metadata = client.get_model_metadata(name)
    assert (metadata.name, metadata.platform) == (name, "pytorch_libtorch")
    assert list(metadata.versions) == [str(version) for version in SERVED[name]]
    batch = [-1] if config.max_batch_size > 0 else []
    for told, written in ((metadata.inputs, config.input), (metadata.outputs, config.output)):
        assert [(each.name, "TYPE_" + each.datatype, list(each.shape)) for each in told] == [
            (each.name, model_config_pb2.DataType.Name(each.data_type), batch + list(each.dims))
            for each in written
        ]


def forget(config: model_config_pb2.ModelConfig) -> None:
    """Clears settings that describe default behavior, which the server does not return."""
    config.ClearField("optimization")
    config.parameters.clear()
    for group in config.instance_group:
        group.ClearField("name")


@NAMES
def test_configuration_matches_the_file(
    client: triton.InferenceServerClient, name: str
) -> None:
    written = model_config_pb2.ModelConfig()
    written.CopyFrom(EXAMPLES[name].parsed)
    served = client.get_model_config(name).config
    for config in (written, served):
        forget(config)
    for field, value in written.ListFields():
        if field.name == "instance_group":
            count = [max(group.count, 1) for group in value]
            assert [group.count for group in served.instance_group] == count
            assert [group.kind for group in served.instance_group] == [g.kind for g in value]
        elif field.name == "model_warmup":
            for each in value:
                each.count = max(each.count, 1)
            assert served.model_warmup == value
        elif field.name == "dynamic_batching":
            value.default_queue_policy.SetInParent()  # Returned even if it is empty.
            assert served.dynamic_batching == value
        else:
            assert getattr(served, field.name) == value, field.name


def test_statistics_count_every_example(client: triton.InferenceServerClient) -> None:
    def counts() -> dict[tuple[str, str], int]:
        stats = client.get_inference_statistics().model_stats
        return {(each.name, each.version): each.inference_count for each in stats}

    before = counts()
    assert before.keys() == {(n, str(v)) for n, versions in SERVED.items() for v in versions}
    rows = {key: 0 for key in before}
    for name, inputs in EVERY_REQUEST:
        infer(client, name, inputs)
        batched = EXAMPLES[name].parsed.max_batch_size > 0
        newest = name, str(SERVED[name][-1])
        rows[newest] += len(next(iter(inputs.values()))) if batched else 1
    assert counts() == {key: before[key] + rows[key] for key in before}


# Settings of the same documents for other backends or machines, or that affect only speed. The
# server rejects each of them.
REFUSED = {
    "sequences": ("sequence_batching { direct { } }", "sequence_batching"),
    "iterative": ("sequence_batching { iterative_sequence: true }", "iterative_sequence"),
    "ensemble": ('ensemble_scheduling { step [ { model_name: "a" } ] }', "ensemble_scheduling"),
    "tensorrt": (
        'optimization { execution_accelerators { gpu_execution_accelerator : [ { name : "tensorrt" '
        'parameters { key: "precision_mode" value: "FP16" } } ] } }',
        "gpu_execution_accelerator",
    ),
    "openvino": (
        "optimization { execution_accelerators { "
        'cpu_execution_accelerator : [ { name : "openvino" } ] } }',
        "cpu_execution_accelerator",
    ),
    "graph": ("optimization { graph : { level : 1 } }", "optimization.graph.level"),
    "cuda_graphs": ("optimization { cuda { graphs: true } }", "optimization.cuda.graphs"),
    "cache": ("response_cache { enable: true }", "response_cache.enable"),
    "metrics": (
        "model_metrics { metric_control [ { metric_identifier "
        '{ family: "nv_inference_first_response_histogram_ms" } '
        "histogram_options { buckets: [ 1, 2, 4 ] } } ] }",
        "model_metrics",
    ),
    "decoupled": ("model_transaction_policy { decoupled: True }", "decoupled"),
    "by_capability": ('cc_model_filenames [ { key: "7.5" value: "t4.pt" } ]', "cc_model_filenames"),
    "gpus": ("instance_group [ { count: 2 kind: KIND_GPU } ]", "--devices has no GPU"),
    "own_devices": ("instance_group [ { kind: KIND_MODEL } ]", "KIND_MODEL"),
    "too_many": ("instance_group [ { count: 4 kind: KIND_CPU } ]", "--devices=cpu*N"),
    "host_policy": ('instance_group [ { count: 2 host_policy: "policy_0" } ]', "host_policy"),
    "rate_limiter": (
        'instance_group [ { rate_limiter { resources [ { name: "R1" count: 4 } ] priority: 2 } } ]',
        "rate_limiter",
    ),
    **{
        key.lower(): (
            f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}',
            f'parameters["{key}"]',
        )
        for key, value in (
            ("DISABLE_CUDNN", "true"),
            ("ENABLE_WEIGHT_SHARING", "true"),
            ("ENABLE_CACHE_CLEANING", "true"),
            ("ENABLE_JIT_EXECUTOR", "true"),
            ("ENABLE_JIT_PROFILING", "true"),
            ("ENABLE_TENSOR_FUSER", "true"),
            ("ENABLE_NVFUSER", "true"),
            ("INTER_OP_THREAD_COUNT", "1"),
            ("INTRA_OP_THREAD_COUNT", "1"),
            ("NUM_THREADS", "4"),
        )
    },
}
# Settings that explicitly request default behavior.
OBEYED = {
    **{
        f"{key.lower()}_{value}": f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in (
            ("DISABLE_OPTIMIZED_EXECUTION", "true"),
            ("ENABLE_JIT_EXECUTOR", "false"),
            ("ENABLE_JIT_PROFILING", "false"),
            ("ENABLE_NVFUSER", "false"),
            ("ENABLE_TENSOR_FUSER", "false"),
        )
    },
    "coupled": "model_transaction_policy { decoupled: False }",
    "uncached": "response_cache { enable: false }",
    "no_graphs": "optimization { cuda { graphs: false } }",
    "no_level": "optimization { graph : { level : 0 } }",
    "batched": "dynamic_batching { }",
    "in_order": "dynamic_batching { preserve_ordering: true }",
    "two": "instance_group [ { count: 2 }]",
}


def nameless(name: str, more: str) -> Example:
    """Adds text to the configuration of the example `name`, for a folder with any name."""
    config = EXAMPLES[name].config.replace(f'name: "{name}"\n', "", 1)
    return dataclasses.replace(EXAMPLES[name], config=config + more)


def states_of(directory: Path, examples: dict[str, Example]) -> dict[str, tuple[str, str]]:
    """Returns the state and the reason of each of `examples` on a new server."""
    for name, example in examples.items():
        example.write(directory / "models" / name)
    flags = ("--cpu_threads=1",)
    with (
        Server(directory / "models", "cpu*2", directory / "run", flags) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        why = reasons(client)
        return {name: (state, why[name, version]) for name, version, state in index(client)}


def test_unsupported_settings_are_rejected_by_name(tmp_path: Path) -> None:
    examples = {name: nameless("simple", text) for name, (text, _) in REFUSED.items()}
    examples |= {name: nameless("simple", text) for name, text in OBEYED.items()}
    states = states_of(tmp_path, examples)
    for name, (_, word) in REFUSED.items():
        state, reason = states.pop(name)
        assert state == "UNAVAILABLE" and word in reason, (name, reason)
    assert states == {name: ("READY", "") for name in OBEYED}


def warmup(batch: int, name: str, data_type: str, dims: str, data: str) -> str:
    return f"""
model_warmup {{
  name: "sample"
  batch_size: {batch}
  inputs {{ key: "{name}" value: {{ data_type: {data_type} dims: [ {dims} ] {data} }} }}
}}
"""


def test_warm_up_of_an_unbatched_model(tmp_path: Path) -> None:
    more = warmup(1, "input__0", "TYPE_FP32", "3, 224, 224", "zero_data: true")
    states = states_of(tmp_path, {"resnet50": nameless("resnet50", more)})
    assert states == {"resnet50": ("READY", "")}


def test_warm_up_with_a_row_from_a_file(tmp_path: Path) -> None:
    more = warmup(8, "in", "TYPE_FP32", "1", 'input_data_file: "row"')
    folder = tmp_path / "models/no_dims/warmup"
    example = nameless("no_dims", more)
    example.write(folder.parent)
    folder.mkdir()
    np.ones(1, np.float32).tofile(folder / "row")
    states = states_of(tmp_path, {})
    assert states == {"no_dims": ("READY", "")}
