"""Serves a TorchScript model with PyTriton and two workers of one intra-op thread.

    pytriton_server.py MODEL_PT MAX_BATCH GRPC_PORT HTTP_PORT READY_FILE

Runs with the interpreter that has pytriton_requirements.txt installed. Serves until SIGTERM.
"""

import pathlib
import signal
import sys
import threading

import numpy as np
import torch
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

WORKERS = 2


def infer_function(path):
    module = torch.jit.load(path).eval()

    @batch
    def infer(x):
        torch.set_num_threads(1)
        with torch.inference_mode():
            return {"y": module(torch.from_numpy(x)).numpy()}

    return infer


def main() -> None:
    path, max_batch, grpc_port, http_port, ready = sys.argv[1:]
    stop = threading.Event()
    config = TritonConfig(
        grpc_address="127.0.0.1",
        grpc_port=int(grpc_port),
        http_address="127.0.0.1",
        http_port=int(http_port),
        allow_metrics=False,
    )
    with Triton(
        config=config, security_config=TritonSecurityConfig(restricted_endpoints=[])
    ) as triton:
        triton.bind(
            model_name="mlp",
            infer_func=[infer_function(path) for _ in range(WORKERS)],
            inputs=[Tensor(name="x", dtype=np.float32, shape=(784,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(10,))],
            config=ModelConfig(
                max_batch_size=int(max_batch),
                batcher=DynamicBatcher(max_queue_delay_microseconds=0),
            ),
        )
        triton.run()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: stop.set())
        pathlib.Path(ready).touch()
        stop.wait()


if __name__ == "__main__":
    main()
