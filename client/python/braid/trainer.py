"""A trainer: a model that is trained on the server, one operation at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING

import numpy as np

from braid import _download, _replies, _requests, _state_dict
from braid._channel import remaining
from braid._handle import Handle
from braid._protocol import TRAINING
from braid._requests import Tensors
from braid.results import (
    Checkpoint,
    EvaluationResult,
    ForwardResult,
    OperationResult,
    StepResult,
    TrainerInfo,
)
from braid.stream import Replay, Stream

if TYPE_CHECKING:
    from braid.client import Client

_FORMATS = {"torchscript": 1, "safetensors": 2, "package": 3}


class Trainer:
    """A handle on a trainer, from `Client.create_trainer` or `Client.trainer`.

    Thread-safe: operations that several threads ask for are applied one after the other.

    Every operation carries the number after the last one applied, so the server applies it once,
    however often it is sent. One that fails changes nothing and uses up no number. Where the
    outcome is not known (Unavailable, DeadlineExceeded, an interrupt), call the same operation
    with the same arguments again: it is applied now, or its recorded reply is returned. To go on
    with another one instead, call `sync` first.

    With a checkpoint policy (`checkpoint_every`, `checkpoint_every_seconds` of `create_trainer`)
    a handle survives the server's restart: it waits for the server, up to the timeout, and sends
    again what the trainer has lost, before the next operation and before its state is read:
    `state_dict`, `download`, `evaluate` and `save_checkpoint` never find an older one than the
    handle has seen. For that it keeps every operation until it is durable, in 512 MiB at most;
    when they are full, it has the server write a checkpoint. It never sends again what another
    handle has operated: a trainer that stands further back is brought up only if it stands at its
    durable number and the server was started again or the connection broke. In every other case,
    and without a policy, it is FailedPrecondition, which names the number expected; an operation
    out of turn is that or Aborted.

    Arrays are numpy arrays or torch tensors, on any device, and what `numpy.asarray` takes; all
    arrays of an operation have one dim 0, the batch. `timeout` is in seconds, all attempts
    included; None is the client's. Failures are `braid.BraidError`s.
    """

    def __init__(self, client: Client, info: TrainerInfo) -> None:
        """For the package's own use."""
        self._client = client
        self._name = info.name
        self._model = info.model
        self._handle = Handle(client._channel, info)

    def __repr__(self) -> str:
        return f"<braid.Trainer {self._name!r} of model {self._model!r}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def model(self) -> str:
        """The model that it was created from and publishes to."""
        return self._model

    def step(
        self,
        inputs: Tensors,
        targets: Tensors,
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        group_lr: Sequence[float] | None = None,
        metric: float | None = None,
        report_split: bool = False,
        timeout: float | None = None,
    ) -> StepResult:
        """One training step over the whole batch: forward, loss, backward, update.

        inputs: the model's inputs by name, in the model's datatypes.
        targets: the losses' targets, {"target": y} unless a loss names another: class indices
            (int64) or probabilities for cross_entropy, an array like the output for mse.
        lr, weight_decay, momentum: for this update, in place of the optimizer's own.
        group_lr: one for each parameter group, likewise.
        metric: what ReduceLROnPlateau looks at, in place of the loss.
        report_split: fill the result's `chunks`.
        """
        request = _requests.step(lr, weight_decay, momentum, group_lr, metric, report_split)
        tensors = _requests.batch(inputs, targets)
        return _replies.step_result(self._handle.operate("Step", request, timeout, tensors))

    def forward_backward(
        self,
        inputs: Tensors,
        targets: Tensors,
        *,
        report_split: bool = False,
        timeout: float | None = None,
    ) -> StepResult:
        """Forward, loss and backward; adds to the gradients that `optim_step` will use.

        Takes what `step` takes. The result's `step` is the number of updates, so it stays.
        """
        request = _requests.forward_backward(report_split)
        tensors = _requests.batch(inputs, targets)
        reply = self._handle.operate("ForwardBackward", request, timeout, tensors)
        return _replies.step_result(reply)

    def optim_step(
        self,
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        group_lr: Sequence[float] | None = None,
        metric: float | None = None,
        timeout: float | None = None,
    ) -> OperationResult:
        """One update from the accumulated gradients, which it clears.

        lr, weight_decay, momentum, group_lr, metric: as for `step`. With loss_mode "client" the
            server knows no loss: without `metric` ReduceLROnPlateau does not move.
        FailedPrecondition if there are no gradients.
        """
        request = _requests.optim_step(lr, weight_decay, momentum, group_lr, metric)
        return _replies.operation_result(self._handle.operate("OptimStep", request, timeout))

    def forward(
        self,
        inputs: Tensors,
        targets: Tensors | None = None,
        *,
        mode: str = "train",
        keep_graph: bool = False,
        report_split: bool = False,
        timeout: float | None = None,
    ) -> ForwardResult:
        """The forward pass alone, with the trainer's weights as they are now.

        targets: as for `step`; with them the result carries the loss.
        mode: "train" (updates buffers, as batch norm's statistics) or "eval" (changes nothing).
        keep_graph: keep what `backward` needs, until the next operation. Only with mode "train".
            No checkpoint holds it: one that is saved in between leaves the `backward` nothing to
            be sent again on, after a restart of the server.
        """
        request = _requests.forward(mode, report_split, keep_graph)
        tensors = _requests.batch(inputs, targets)
        return _replies.forward_result(self._handle.operate("Forward", request, timeout, tensors))

    def backward(
        self, output_gradients: Tensors, *, timeout: float | None = None
    ) -> OperationResult:
        """Backward from the `forward(keep_graph=True)` just before, of a loss of the caller's own.

        Adds to the gradients that `optim_step` will use.
        output_gradients: the loss's gradient with respect to each output, by name, of its shape
            and datatype; an output that is left out does not reach the loss.
        FailedPrecondition if there is no graph.
        """
        tensors = {"output_gradients": output_gradients}
        reply = self._handle.operate("Backward", _requests.backward(), timeout, tensors)
        return _replies.operation_result(reply)

    def publish(self, model: str | None = None, *, timeout: float | None = None) -> int:
        """Makes the trainer's weights the next version of its model, and returns that version.

        Inference serves it before this returns. `model`, if given, must be the trainer's own: it
        is there to say in the caller's code what is published.
        """
        if model is not None and model != self._model:
            raise ValueError(
                f"trainer {self._name!r} trains model {self._model!r} and publishes to it; "
                f"it cannot publish to {model!r}"
            )
        reply = self._handle.operate("Publish", _requests.publish(), timeout)
        return _replies.published_version(reply)

    def stream(
        self,
        depth: int = 2,
        *,
        replay: Replay | None = None,
        buffer_operations: int | None = None,
        buffer_bytes: int | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """Operations with up to `depth` of them on their way at once, as a context manager.

            with trainer.stream(depth=4) as stream:
                for x, y in loader:
                    future = stream.step({"x": x}, {"target": y})

        replay: makes a batch again, given its number, as (inputs, targets): the stream's steps
            and forward_backwards are counted from 0. With it nothing is kept of a batch once it
            is applied. It must give the same arrays as before.
        buffer_operations, buffer_bytes: the most that is kept for sending again after the
            server's restart; None: any number, in 512 MiB. Where they are full a call waits for
            the replies under way, which may say that a checkpoint was written, then has the
            server write one. A trainer without a checkpoint policy keeps nothing that was
            applied.
        timeout: seconds in which something must be replied while operations are under way,
            whether or not the server can be reached; None: the client's.
        While it is open, operations go through it alone.
        """
        return Stream(self._handle, depth, replay, buffer_operations, buffer_bytes, timeout)

    def evaluate(
        self,
        batches: Iterable[tuple[Tensors, Tensors]],
        *,
        metrics: Sequence[str] = ("accuracy",),
        k: int = 5,
        timeout: float | None = None,
    ) -> EvaluationResult:
        """Loss and metrics over `batches` of (inputs, targets), in eval mode, in one pass.

        metrics: any of "accuracy", "top_k" (with `k`), "confusion", of class indices; "mse",
            "mae", of a target like the output. Of the first loss's output and target; with
            loss_mode="client", where there is no loss, of the first output and "target".
        Changes nothing and takes no number. Each batch is evaluated with the weights as they are
        when its turn comes: what operates the trainer meanwhile goes on between them. The result's
        `step` is that of the last one. It is sent once: Unavailable if the connection breaks.
        `batches` is iterated in the calling thread. ValueError if there are none.
        """
        requests = _evaluate_requests(self._name, batches, metrics, k)
        call = partial(self._client._channel.call_feeding, TRAINING["Evaluate"], requests)
        return _replies.evaluation_result(self._handle.read_once(call, timeout))

    def save_checkpoint(self, *, timeout: float | None = None) -> Checkpoint:
        """Has the server write a checkpoint, and returns it once it is durable.

        FailedPrecondition if the server has no data directory.
        """
        return self._handle.save_checkpoint(timeout)

    def list_checkpoints(self, *, timeout: float | None = None) -> list[Checkpoint]:
        """The trainer's checkpoints, the oldest first."""
        method = TRAINING["ListCheckpoints"]
        request = method.request(trainer=self._name)
        reply = self._client._channel.call(method, request, timeout)
        return [_replies.checkpoint(checkpoint) for checkpoint in reply.checkpoints]

    def restore_checkpoint(
        self, name: str | None = None, *, timeout: float | None = None
    ) -> TrainerInfo:
        """Has the trainer stand where a checkpoint stands, and goes on from there.

        name: None: the newest. What a restart of the server has undone is sent again first, if it
            can be: it may have checkpoints written.
        """
        method = TRAINING["RestoreCheckpoint"]
        request = method.request(trainer=self._name, checkpoint=name or "")
        with self._handle.lock:
            self._handle.check_free()
            deadline = self._client._channel.deadline(timeout)
            if name is None:
                self._handle.make_up(deadline)
            reply = self._client._channel.call(method, request, remaining(deadline))
            info = _replies.trainer_info(reply.trainer)
            self._handle.begin_at(info)
            return info

    def state_dict(self, *, timeout: float | None = None) -> dict[str, np.ndarray]:
        """Parameters and buffers by name, in the module's order, as between two operations.

        A bfloat16 tensor comes as float32, which holds the same values. Buffers that are not
        persistent are among it: load it with `module.load_state_dict(…, strict=False)`.
        """
        method = TRAINING["GetStateDict"]
        request = method.request(trainer=self._name)
        call = partial(
            self._client._channel.call_streaming, method, request, _state_dict.assemble
        )
        state: dict[str, np.ndarray] = self._handle.read(call, timeout)
        return state

    def download(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        format: str = "torchscript",
        *,
        timeout: float | None = None,
    ) -> int:
        """Writes the model, with its weights as they are now, to a file; returns its size.

        file: a path, which is replaced once all has come, or an object to write to.
        format: "safetensors", parameters and buffers alone; of a TorchScript model, "torchscript",
            for torch.jit.load; of an exported pair, "package", its model.pt2, which holds no
            weights: "safetensors" gives what lies beside it, model.safetensors.
        """
        if format not in _FORMATS:
            raise ValueError(f"unknown format {format!r}; known: {', '.join(_FORMATS)}")
        method = TRAINING["DownloadModel"]
        request = method.request(trainer=self._name, format=_FORMATS[format])

        def call(receive: _download.Receive) -> int:
            stream = partial(self._client._channel.call_streaming, method, request, receive)
            size: int = self._handle.read(stream, timeout)
            return size

        if isinstance(file, (str, os.PathLike)):
            return _download.to_path(file, call)
        return _download.to_file(file, call)

    def info(self, *, timeout: float | None = None) -> TrainerInfo:
        """The trainer as it stands on the server."""
        return self._handle.info(timeout)

    def sync(self, *, timeout: float | None = None) -> TrainerInfo:
        """Goes on from the number that the server last applied, and returns where it stands.

        For going on with another operation after one whose outcome is not known, with a trainer
        that another handle has operated meanwhile, and with one that has lost operations that
        this handle cannot send again. Those that it can are sent again first. It waits until what
        the server has received already is applied or has failed, so that the number stays; what
        of it this handle has sent, it keeps for the next restart.
        """
        return self._handle.sync(timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """Deletes the trainer, its memory and its checkpoints; published versions stay."""
        self._client.delete_trainer(self._name, timeout=timeout)


def _evaluate_requests(
    trainer: str,
    batches: Iterable[tuple[Tensors, Tensors]],
    metrics: Sequence[str],
    k: int,
) -> Iterator[bytes]:
    """The messages of an evaluation, serialized: the first says of what. ValueError if there are no batches."""
    kind = TRAINING["Evaluate"].request
    if isinstance(metrics, str):
        raise ValueError(f"metrics must be several names, as in [{metrics!r}]; got {metrics!r}")
    request = kind(trainer=trainer, metrics=metrics, k=k)
    empty = True
    for inputs, targets in batches:
        yield _requests.serialize(request, _requests.batch(inputs, targets))
        request = kind()
        empty = False
    if empty:
        raise ValueError("there are no batches to evaluate")
