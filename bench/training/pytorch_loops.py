"""PyTorch training loops in their own processes, which idle between rounds."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.training.workloads import WORKLOADS, Workload

REPLY_SECONDS = 60
# Time for a process to exit before it is killed.
END_SECONDS = 5


class PyTorchLoop:
    """`processes` processes with `threads` intra-op threads each. Several processes use
    DistributedDataParallel over Gloo, each with its share of every batch.

    folder: new, for the process group's file store.
    alone: run only forward, loss and backward of each share, without all-reduce and optimizer. This
    is an upper bound for replicas on this machine.
    """

    def __init__(
        self, workload: Workload, processes: int, threads: int, folder: Path, alone: bool = False
    ) -> None:
        folder.mkdir()
        # Spawned, because threads and gRPC do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(theirs, workload.name, rank, processes, threads, folder / "store", alone),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, steps: int) -> float:
        """Runs `steps` steps and returns the seconds they took. RuntimeError if a process fails."""
        for pipe in self._pipes:
            pipe.send(steps)
        seconds = []
        for pipe in self._pipes:
            if not pipe.poll(REPLY_SECONDS):
                raise RuntimeError(f"PyTorch: no reply after {REPLY_SECONDS} s")
            try:
                seconds.append(pipe.recv())
            except EOFError:
                raise RuntimeError("PyTorch: a process exited") from None
        return max(seconds)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # makes the process exit
        for process in self._processes:
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def _work(
    pipe: Connection,
    name: str,
    rank: int,
    processes: int,
    threads: int,
    store: Path,
    alone: bool,
) -> None:
    torch.set_num_threads(threads)
    workload = WORKLOADS[name]
    module = workload.module().train()
    if processes > 1 and not alone:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=processes
        )
        module = DistributedDataParallel(module)
    parameters = {key: value for key, value in workload.optimizer.items() if key != "name"}
    make_optimizer = getattr(torch.optim, workload.optimizer["name"])
    optimizer = None if alone else make_optimizer(module.parameters(), **parameters)
    batches = [
        (torch.from_numpy(x).chunk(processes)[rank], torch.from_numpy(y).chunk(processes)[rank])
        for x, y in workload.batches()
    ]
    try:
        while True:
            pipe.send(_train(module, optimizer, batches, pipe.recv()))
    except (EOFError, BrokenPipeError):
        pass
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _train(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    steps: int,
) -> float:
    start = time.perf_counter()
    for step in range(steps):
        x, target = batches[step % len(batches)]
        module.zero_grad()
        loss = functional.cross_entropy(module(x), target)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        loss.item()  # Every reply of Braid has the loss, too.
    return time.perf_counter() - start
