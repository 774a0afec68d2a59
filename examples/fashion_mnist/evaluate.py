#!/usr/bin/env python3
"""Classifies Fashion-MNIST's test images with the served model, using tritonclient.

usage: evaluate.py ADDRESS DATA MIN_ACCURACY

ADDRESS is the server's HOST:PORT, DATA the directory that dataset.py wrote. Prints accuracy and
throughput. Exits with status 1 if the accuracy is below MIN_ACCURACY (for example 0.88).
"""

import pathlib
import queue
import sys
import time

import numpy as np
import tritonclient.grpc as triton

MODEL = "fashion"
BATCH = 500
TIMEOUT_SECONDS = 60


def make_request(images):
    request = triton.InferInput("x", images.shape, "UINT8")
    request.set_data_from_numpy(images)
    return [request]


def classify(client, output, images):
    """Returns the class of each image, int64 [N]. Keeps all batches in flight."""
    replies = queue.SimpleQueue()
    starts = range(0, len(images), BATCH)

    def reply_to(start):
        return lambda result, error: replies.put((start, result, error))

    for start in starts:
        client.async_infer(MODEL, make_request(images[start : start + BATCH]), reply_to(start))
    classes = np.empty(len(images), np.int64)
    for _ in starts:
        start, result, error = replies.get(timeout=TIMEOUT_SECONDS)
        if error:
            raise error
        classes[start : start + BATCH] = result.as_numpy(output).argmax(axis=1)
    return classes


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    address, data, min_accuracy = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
    images = np.load(data / "test_images.npy")
    labels = np.load(data / "test_labels.npy")
    with triton.InferenceServerClient(address) as client:
        metadata = client.get_model_metadata(MODEL)
        output = metadata.outputs[0].name
        client.infer(MODEL, make_request(images[:BATCH]), client_timeout=TIMEOUT_SECONDS)  # warm up
        started = time.perf_counter()
        classes = classify(client, output, images)
        seconds = time.perf_counter() - started
    accuracy = float((classes == labels).mean())
    print(f"model       {MODEL}, version {metadata.versions[-1]}")
    print(f"accuracy    {accuracy:.2%} of {len(images)} test images")
    print(f"throughput  {len(images) / seconds:.0f} images/s, in requests of {BATCH}")
    if accuracy < min_accuracy:
        sys.exit(f"error: accuracy {accuracy:.2%} is below {min_accuracy:.2%}")


if __name__ == "__main__":
    main()
