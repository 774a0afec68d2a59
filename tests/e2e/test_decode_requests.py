"""Requests with images and texts, which the server decodes as the model's configuration says."""

from __future__ import annotations

import io
import json
import queue
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import tokenizers
import torch
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from e2e.support import metrics, models
from e2e.support.inference import infer_input
from e2e.support.protocol import CALL_SECONDS
from e2e.support.server import Server
from PIL import Image
from tokenizers import models as token_models
from tokenizers import pre_tokenizers, processors
from torch import Tensor, nn
from torchvision.transforms import v2
from tritonclient.utils import InferenceServerException

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIZE = 32
LABELS = ["tabby", "beagle", "goldfish", "toaster"]
IMAGE_CONFIG = """
max_batch_size: 16
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [
  { name: "pixels" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" }
]
parameters { key: "decode.image" value { string_value: '%s' } }
parameters { key: "row_independence" value { string_value: "assumed" } }
"""
IMAGE_DECODE = {
    "image": {
        "transforms": [
            {"resize": [SIZE, SIZE]},
            "to_float",
            {"normalize": {"mean": MEAN, "std": STD}},
        ],
        "max_pixels": 1_000_000,
    }
}
TEXT_CONFIG = """
max_batch_size: 16
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [
  { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "count" data_type: TYPE_INT64 dims: [ 1 ] }
]
parameters { key: "decode.ids" value { string_value: '%s' } }
parameters { key: "row_independence" value { string_value: "assumed" } }
"""
TEXT_DECODE = {"tokenizer": "tokenizer.json", "max_length": 6, "mask": "mask"}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat"]


class Classifier(nn.Module):
    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.stack(
            [image.mean(dim=(1, 2, 3)) * factor for factor in (1.0, -1.0, 2.0, -2.0)], dim=1
        )
        return image * 1, scores


class TokenCounter(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return ids * mask, mask.sum(dim=1, keepdim=True)


def tokenizer() -> tokenizers.Tokenizer:
    words = token_models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def write_models(repository: Path) -> None:
    models.export(
        repository / "classifier", Classifier(), config=IMAGE_CONFIG % json.dumps(IMAGE_DECODE)
    )
    (repository / "classifier/labels.txt").write_text("\n".join(LABELS))
    ordered = IMAGE_CONFIG + "dynamic_batching { preserve_ordering: true }\n"
    models.export(
        repository / "ordered", Classifier(), config=ordered % json.dumps(IMAGE_DECODE)
    )
    (repository / "ordered/labels.txt").write_text("\n".join(LABELS))
    models.export(
        repository / "counter", TokenCounter(), config=TEXT_CONFIG % json.dumps(TEXT_DECODE)
    )
    tokenizer().save(str(repository / "counter/tokenizer.json"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("decode")
    write_models(directory / "models")
    flags = ("--cpu_threads=1", "--allow_client_shared_memory", "--max_request_bytes=67108864")
    with Server(directory / "models", "cpu*2", directory / "run", flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as made:
        yield made


def picture(seed: int, width: int = 60, height: int = 50) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 10, width // 10, 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, format: str = "JPEG") -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


def decoded(file: bytes) -> np.ndarray:
    """Returns the tensor that torchvision makes of an image."""
    transform = v2.Compose([
        v2.PILToTensor(),
        v2.Resize((SIZE, SIZE), antialias=True),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ])
    return transform(Image.open(io.BytesIO(file)).convert("RGB")).numpy()


def bytes_input(name: str, rows: list[bytes], shape: list[int] | None = None) -> triton.InferInput:
    shape = shape or [len(rows), 1]
    tensor = triton.InferInput(name, shape, "BYTES")
    tensor.set_data_from_numpy(np.array(rows, np.object_).reshape(shape))
    return tensor


def classify(
    client: triton.InferenceServerClient, rows: list[bytes], model: str = "classifier", **options
) -> triton.InferResult:
    tensors = [bytes_input("image", rows)]
    return client.infer(model, tensors, client_timeout=CALL_SECONDS, **options)


def assert_decoded(result: triton.InferResult, files: list[bytes]) -> None:
    wanted = np.stack([decoded(file) for file in files])
    # JPEG decoders may differ by one step of 255, which Normalize divides by STD.
    np.testing.assert_allclose(result.as_numpy("pixels"), wanted, atol=2.1 / 255 / min(STD))


FILES = [encoded(picture(1)), encoded(picture(2, 91, 30), "PNG"), encoded(picture(3).convert("L"))]


@pytest.mark.parametrize("shape", [[3], [3, 1]])
def test_images_are_decoded_like_torchvision(
    client: triton.InferenceServerClient, shape: list[int]
) -> None:
    result = client.infer("classifier", [bytes_input("image", FILES, shape)])
    assert_decoded(result, FILES)


def test_encoded_images_give_the_result_of_their_tensors(
    client: triton.InferenceServerClient,
) -> None:
    from_files = classify(client, FILES)
    from_tensors = client.infer("classifier", [infer_input("image", from_files.as_numpy("pixels"))])
    np.testing.assert_array_equal(from_tensors.as_numpy("scores"), from_files.as_numpy("scores"))


def test_a_batch_beyond_max_batch_size_is_split(client: triton.InferenceServerClient) -> None:
    files = [FILES[i % 3] for i in range(40)]
    result = classify(client, files)
    assert result.as_numpy("pixels").shape == (40, 3, SIZE, SIZE)
    assert_decoded(result, files)


def test_classes_of_an_image_have_labels(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput("scores", class_count=2)]
    classes = classify(client, FILES[:2], outputs=outputs).as_numpy("scores")
    assert classes.shape == (2, 2)
    scores = classify(client, FILES[:2]).as_numpy("scores")
    for row, texts in zip(scores, classes, strict=True):
        for index, text in zip(np.argsort(-row)[:2], texts, strict=True):
            value, number, label = text.decode().split(":")
            assert (int(number), label) == (index, LABELS[index])
            assert float(value) == pytest.approx(row[index], abs=1e-5)


def test_metadata_describes_the_rows_and_the_configuration_the_tensor(
    client: triton.InferenceServerClient,
) -> None:
    [metadata] = client.get_model_metadata("classifier").inputs
    assert (metadata.datatype, list(metadata.shape)) == ("BYTES", [-1, 1])
    config = client.get_model_config("classifier").config
    assert list(config.input[0].dims) == [3, SIZE, SIZE]
    assert json.loads(config.parameters["decode.image"].string_value) == IMAGE_DECODE


@pytest.mark.parametrize("bad", [b"", b"no image", FILES[0][:200], b"\xff\xd8\xff\xe0" + bytes(50)])
def test_a_bad_row_fails_its_request_and_is_named(
    client: triton.InferenceServerClient, bad: bytes
) -> None:
    with pytest.raises(InferenceServerException, match="input 'image', row 3: ") as caught:
        classify(client, [*FILES, bad, FILES[0]])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert_decoded(classify(client, FILES), FILES)


def test_an_image_with_too_many_pixels_is_rejected(client: triton.InferenceServerClient) -> None:
    large = encoded(Image.new("L", (1001, 1000)), "PNG")
    assert len(large) < 10_000
    with pytest.raises(InferenceServerException, match="row 0: .*1000000"):
        classify(client, [large])


def test_rows_count_by_their_tensors(client: triton.InferenceServerClient) -> None:
    # 6000 rows of 12 KiB exceed --max_request_bytes, 64 MiB, although no row has any bytes.
    with pytest.raises(InferenceServerException, match="--max_request_bytes") as caught:
        classify(client, [b""] * 6000)
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_texts_count_by_the_memory_of_the_tokenizer(
    client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="--max_request_bytes") as caught:
        client.infer("counter", [bytes_input("ids", [b"cat " * 50_000])])
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(("shape", "data", "reason"), [
    ([2], b"\1\0\0\0a", "has 1 elements for 'image' .expected 2"),
    ([1], b"\1\0\0\0a\1\0\0\0b", "has 2 elements"),
    ([1], b"\5\0\0\0a", "ends within element 0"),
    ([1, 2], b"\1\0\0\0a\1\0\0\0b", r"\[1, 2\] of BYTES input 'image'"),
    ([0], b"", r"\[0\] of BYTES input"),
])
def test_malformed_rows_are_rejected(
    client: triton.InferenceServerClient, shape: list[int], data: bytes, reason: str
) -> None:
    tensor = triton.InferInput("image", shape, "BYTES")
    tensor._raw_content = data
    with pytest.raises(InferenceServerException, match=reason) as caught:
        client.infer("classifier", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_concurrent_requests_get_their_own_images(server: Server) -> None:
    failures: queue.Queue = queue.Queue()

    def run(seed: int) -> None:
        files = [encoded(picture(100 * seed + i)) for i in range(seed + 1)]
        try:
            with triton.InferenceServerClient(server.address) as own:
                for _ in range(5):
                    assert_decoded(classify(own, files, "ordered"), files)
        except (AssertionError, InferenceServerException) as error:
            failures.put(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures.empty(), failures.get()


def test_streams_reply_in_order(client: triton.InferenceServerClient) -> None:
    replies: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    files = [encoded(picture(i)) for i in range(9)]
    for i, file in enumerate(files):
        rows = [b"bad"] if i == 4 else [file] * (1 + 10 * (i % 2))
        client.async_stream_infer("classifier", [bytes_input("image", rows)], request_id=str(i))
    for i, file in enumerate(files):
        result, error = replies.get(timeout=CALL_SECONDS)
        if i == 4:
            assert "input 'image', row 0: " in str(error)
        else:
            assert result.get_response().id == str(i)
            assert_decoded(result, [file] * (1 + 10 * (i % 2)))
    client.stop_stream()


def test_images_in_shared_memory(client: triton.InferenceServerClient) -> None:
    content = b"".join(len(file).to_bytes(4, "little") + file for file in FILES)
    region = shm.create_shared_memory_region("images", f"/{secrets.token_hex(8)}", len(content))
    try:
        shm.set_shared_memory_region(region, [np.frombuffer(content, np.uint8)])
        client.register_system_shared_memory("images", region._shm_key, len(content))
        tensor = triton.InferInput("image", [3, 1], "BYTES")
        tensor.set_shared_memory("images", len(content))
        assert_decoded(client.infer("classifier", [tensor]), FILES)
    finally:
        client.unregister_system_shared_memory("images")
        shm.destroy_shared_memory_region(region)


def test_the_python_client_sends_files(server: Server) -> None:
    with braid.connect(server.address) as own:
        for rows in (FILES, np.array(FILES, object), [[file] for file in FILES]):
            outputs = own.infer("classifier", {"image": rows})
            assert outputs["pixels"].shape == (3, 3, SIZE, SIZE)
        with pytest.raises(braid.InvalidArgument, match="input 'image', row 1: "):
            own.infer("classifier", {"image": [FILES[0], b"bad"]})


def expected_tokens(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encodings = tokenizer().encode_batch(texts)
    width = max(len(each.ids) for each in encodings)
    ids = np.array([each.ids + [0] * (width - len(each.ids)) for each in encodings])
    return ids, np.array([[len(each.ids)] for each in encodings])


@pytest.mark.parametrize("texts", [["the cat sat"], ["the cat", "mat", "", "ä the cat sat"]])
def test_texts_are_padded_within_their_request(
    client: triton.InferenceServerClient, texts: list[str]
) -> None:
    rows = [text.encode() for text in texts]
    result = client.infer("counter", [bytes_input("ids", rows)])
    ids, counts = expected_tokens(texts)
    np.testing.assert_array_equal(result.as_numpy("tokens"), ids)
    np.testing.assert_array_equal(result.as_numpy("count"), counts)


def test_texts_of_different_lengths_do_not_share_padding(server: Server) -> None:
    texts = [" ".join(["cat"] * (1 + i % 4)) for i in range(24)]
    with braid.connect(server.address) as own:
        results: list = [None] * len(texts)

        def run(i: int) -> None:
            results[i] = own.infer("counter", {"ids": [texts[i]]})

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for text, result in zip(texts, results, strict=True):
        np.testing.assert_array_equal(result["tokens"], expected_tokens([text])[0])


def test_a_mask_of_the_client_replaces_the_decoders(client: triton.InferenceServerClient) -> None:
    mask = np.array([[1, 1, 0, 0]])
    inputs = [infer_input("mask", mask), bytes_input("ids", [b"the cat"])]
    result = client.infer("counter", inputs)
    np.testing.assert_array_equal(result.as_numpy("tokens"), [[2, 4, 0, 0]])


def test_a_text_beyond_max_length_is_rejected(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="input 'ids', row 1: .*max_length"):
        client.infer("counter", [bytes_input("ids", [b"cat", b"the cat sat on the mat"])])


def test_token_ids_need_the_mask(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="input 'mask' is missing"):
        client.infer("counter", [infer_input("ids", np.array([[2, 5, 3]]))])


def test_statistics_and_metrics_count_decoding(
    server: Server, client: triton.InferenceServerClient
) -> None:
    before = metrics.scrape(server.metrics_url)
    classify(client, FILES)
    with pytest.raises(InferenceServerException):
        classify(client, [b"bad"])
    after = metrics.scrape(server.metrics_url)

    def grown(name: str) -> float:
        return after.value(name, model="classifier") - before.value(name, model="classifier")

    assert grown("braid_decode_rows_total") == 3
    assert grown("braid_decode_failures_total") == 1
    assert grown("braid_decode_busy_seconds_total") > 0
    [statistics] = client.get_inference_statistics("classifier").model_stats
    compute = statistics.inference_stats.compute_input
    [batches] = [each.compute_input for each in statistics.batch_stats if each.batch_size == 3]
    # A batch has no part in the decoding.
    assert compute.ns / compute.count > batches.ns / batches.count


def test_a_reload_changes_the_decoder(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    flags = ("--model_control_mode=explicit", "--load_model=classifier")
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run", flags) as server:
        with triton.InferenceServerClient(server.address) as own:
            assert classify(own, FILES).as_numpy("pixels").min() < 0
            config = own.get_model_config("classifier", as_json=True)["config"]
            # Without "normalize", values are from 0 to 1.
            unscaled = {"image": {"transforms": IMAGE_DECODE["image"]["transforms"][:2]}}
            config["parameters"]["decode.image"]["string_value"] = json.dumps(unscaled)
            own.load_model("classifier", config=json.dumps(config))
            assert classify(own, FILES).as_numpy("pixels").min() >= 0


@pytest.mark.parametrize(("decode", "reason"), [
    ({"image": {"transforms": [{"resize": {"size": [32, 32]}}]}}, "UINT8 .3, 32, 32. for 'image'"),
    ({"image": {"transforms": [{"to_float": {}}]}}, "transforms"),
    ({"image": {"transforms": [{"random_crop": {"size": [32]}}]}}, "random_crop is random"),
    ({"tokenizer": "tokenizer.json"}, "no file 'tokenizer.json'"),
    ({"tokenizer": "tokenizer.json", "mask": "image"}, "mask: "),
])
def test_a_decoder_that_does_not_fit_is_rejected(
    tmp_path: Path, decode: dict, reason: str
) -> None:
    models.export(
        tmp_path / "models/classifier", Classifier(), config=IMAGE_CONFIG % json.dumps(decode)
    )
    (tmp_path / "models/classifier/labels.txt").write_text("\n".join(LABELS))
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run") as server:
        with triton.InferenceServerClient(server.address) as own:
            [entry] = own.get_model_repository_index().models
            assert entry.state == "UNAVAILABLE"
    assert 'parameters["decode.image"]' in entry.reason
    assert re.search(reason, entry.reason), entry.reason
