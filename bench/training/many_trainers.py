"""Times a server with many trainers of a small model, of which few are in memory.

    bench/training/many_trainers.sh

The model is an MLP of 100 k parameters, trained with SGD on one CPU replica of one thread, in batches
of 64 rows. The server may use 1 GiB for trainers.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path

import braid
import numpy as np
import torch
from e2e.support.server import Server
from torch import nn

TRAINERS = int(os.environ.get("TRAINERS", "10000"))
TURNS = int(os.environ.get("TURNS", "1000"))
ROUNDS = 3
WIDTH = 256
LIMIT = 1 << 30


def module() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def status(server: Server) -> dict[str, int]:
    """Returns numbers of /proc/PID/status; memory in KiB."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)", text, re.M)}


def report(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


def rate(trainers: list[braid.Trainer], steps: int) -> float:
    """Returns the steps per second of `steps` steps, of one trainer after the other."""
    rng = np.random.default_rng(0)
    inputs = {"input": rng.standard_normal((64, WIDTH), dtype=np.float32)}
    targets = {"target": rng.integers(0, 10, 64)}
    start = time.perf_counter()
    for step in range(steps):
        trainers[step % len(trainers)].step(inputs, targets)
    return steps / (time.perf_counter() - start)


def run(folder: Path) -> None:
    torch.manual_seed(0)
    net = module()
    braid.export(net, {"input": torch.zeros(2, WIDTH)}, folder / "models" / "mlp")
    parameters = sum(parameter.numel() for parameter in net.parameters())
    flags = ("--cpu_threads=1", f"--trainer_memory={LIMIT}")
    server = Server(folder / "models", "cpu*1", folder / "run", flags)
    try:
        server.start()
        client = braid.connect(server.address)
        report("parameters of the model", f"{parameters:,}")
        idle = status(server)
        start = time.perf_counter()
        trainers = [
            client.create_trainer("mlp", name=f"t{index}", loss="cross_entropy", optimizer="SGD")
            for index in range(TRAINERS)
        ]
        seconds = time.perf_counter() - start
        report("create a trainer", f"{seconds / TRAINERS * 1e3:.1f} ms")
        now = status(server)
        report("memory of the server before", f"{idle['VmRSS'] >> 10:,} MiB")
        report(f"memory with {TRAINERS:,} trainers", f"{now['VmRSS'] >> 10:,} MiB")
        report("threads before, now", f"{idle['Threads']}, {now['Threads']}")

        few = trainers[:TURNS]
        rate(few, TURNS)
        pairs = [(rate(few[:1], TURNS), rate(few, TURNS)) for _ in range(ROUNDS)]
        one, many = (sorted(values)[ROUNDS // 2] for values in zip(*pairs, strict=True))
        report("steps per second of one trainer", f"{one:.0f}")
        report(f"steps per second of {TURNS:,} trainers in turn", f"{many:.0f}")
        report("ratio", f"{many / one:.2f}")
        now = status(server)
        report("memory after that", f"{now['VmRSS'] >> 10:,} MiB")
        in_memory = sum(not info.on_disk for info in client.trainers())
        report("trainers in memory", f"{in_memory:,}")

        for trainer in few:
            trainer.save_checkpoint()
        client.close()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server.ready_path.unlink()
        start = time.perf_counter()
        server.start()
        client = braid.connect(server.address)
        found = client.trainers()
        report("start after kill -9, until all are listed", f"{time.perf_counter() - start:.1f} s")
        assert len(found) == TRAINERS
        last = client.trainer(f"t{TRAINERS - 1}")
        start = time.perf_counter()
        rate([last], 1)
        report("first step of one on disk", f"{(time.perf_counter() - start) * 1e3:.0f} ms")
        client.close()
    finally:
        server.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))


if __name__ == "__main__":
    main()
