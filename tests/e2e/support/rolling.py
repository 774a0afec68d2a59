"""A rolling update: two servers, replaced one after the other under load."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from e2e.support.durable import DurableServer
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.protocol import Stub, message
from e2e.support.server import Server

CALL_SECONDS = 20
THREADS = 8
ROUND_ROBIN = {"loadBalancingConfig": [{"round_robin": {}}]}
# How a client avoids a server that shuts down: not at all, by watching its health, or by retrying
# on the other server.
SERVICE_CONFIGS = {
    "plain": {},
    "health": {**ROUND_ROBIN, "healthCheckConfig": {"serviceName": "readiness"}},
    "retry": {
        **ROUND_ROBIN,
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
    },
}


@dataclass
class Outcome:
    """replies: number of successful replies. failures: time, code and details of each failure.
    seconds: from the first request to the last reply, set at the end."""

    replies: int = 0
    failures: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0

    @property
    def rate(self) -> float:
        """Returns the successful replies per second."""
        return self.replies / self.seconds


class Load:
    """Context manager that sends `rate` inference requests per second to the servers at `addresses`
    in turn. The result is in `outcome` afterwards.

    At most THREADS requests are in flight. Late requests are sent as soon as a thread is free.
    """

    def __init__(self, addresses: list[str], client: str, rate: float = 1000) -> None:
        options = [
            ("grpc.service_config", json.dumps(SERVICE_CONFIGS[client])),
            # Reconnects to a restarted server within a test's timeout.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
        ]
        self.outcome = Outcome()
        self._channel = grpc.insecure_channel("ipv4:" + ",".join(addresses), options)
        self._stub = Stub(self._channel, "inference.GRPCInferenceService")
        self._rate = rate
        self._numbers = itertools.count()
        self._began = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send) for _ in range(THREADS)]

    def __enter__(self) -> Load:
        grpc.channel_ready_future(self._channel).result(timeout=CALL_SECONDS)
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.outcome.seconds = time.monotonic() - self._began
        self._channel.close()

    def _send(self) -> None:
        request = message("inference.ModelInferRequest")(model_name="mlp")
        request.inputs.add(name="x", datatype="FP32", shape=(1, 784))
        request.raw_input_contents.append(np.zeros((1, 784), np.float32).tobytes())
        while not self._stop.wait(self._seconds_until(next(self._numbers))):
            try:
                self._stub.ModelInfer(request)
                failure = None
            except grpc.RpcError as error:
                failure = f"{error.code().name}: {error.details()}"
            with self._lock:
                if failure is None:
                    self.outcome.replies += 1
                else:
                    self.outcome.failures.append((time.monotonic(), failure))

    def _seconds_until(self, number: int) -> float:
        """Returns the time until a request is due; 0 if it is late."""
        return max(self._began + number / self._rate - time.monotonic(), 0)


class Fleet:
    """Two servers of the model mlp on fixed ports."""

    def __init__(self, repository: Path, directory: Path, flags: dict[str, str]) -> None:
        self.servers = []
        for number in range(2):
            server = DurableServer(repository, "cpu*1", directory / str(number))
            for name, value in {"--data_dir": None, **flags}.items():
                server.replace_flag(name, value)
            self.servers.append(server)

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def replace(self, server: Server) -> None:
        """Shuts `server` down, restarts it and waits until clients are connected again."""
        server.stop()
        server.start()
        wait_until(lambda: _samples(server) > 0)


@contextmanager
def fleet(repository: Path, directory: Path, **flags: str) -> Iterator[Fleet]:
    """flags: of both servers, such as drain_delay="1"."""
    servers = Fleet(repository, directory, {f"--{name}": value for name, value in flags.items()})
    try:
        for server in servers.servers:
            server.start()
        yield servers
    finally:
        for server in servers.servers:
            server.kill()


def _samples(server: Server) -> float:
    return scrape(server.metrics_url).value("braid_inference_samples_total", model="mlp")
