"""Trainer: a model that the server trains, one operation at a time."""

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
    RecordedOperation,
    ReplayReport,
    StepResult,
    TrainerInfo,
)
from braid.stream import Replay, Stream

if TYPE_CHECKING:
    from braid.client import Client

_FORMATS = {"torchscript": 1, "safetensors": 2, "package": 3}
_TRAINABLE_SAFETENSORS = 4


class Trainer:
    """Handle on a trainer, from `Client.create_trainer` or `Client.trainer`.

    Thread-safe: operations from several threads are applied one after the other.

    Operations are numbered, so the server applies each one once, even if it is retried. A failed
    operation changes nothing and does not use its number. If the outcome is unknown (Unavailable,
    DeadlineExceeded, an interrupt), call the same operation with the same arguments again: the
    server applies it now, or returns the recorded reply. To continue with a different operation,
    call `sync` first.

    With a checkpoint policy (`checkpoint_every` or `checkpoint_every_seconds` of
    `create_trainer`), a handle waits for a server that restarts, up to the timeout, and resends the
    unanswered operation. Without a journal (`journal="none"`), it also replays the
    operations that the trainer lost, before the next operation and before `state_dict`, `download`,
    `evaluate` and `save_checkpoint` read the state. For this purpose it keeps each operation until
    it is durable, in a buffer of 512 MiB; if the buffer is full, it requests a checkpoint. A handle
    replays only its own operations, and only if the trainer is at its durable number after a
    restart or a broken connection. Otherwise, and without a policy, the operation raises
    FailedPrecondition with the expected number. An operation that conflicts with one of another
    client raises FailedPrecondition or Aborted.

    Arrays are numpy arrays, torch tensors on any device, or array-likes. All arrays of an operation
    have the same number of rows: dim 0, or the model's `batch_dim`, is the batch. A target has it
    where the output of its loss has it, except for ctc: there it is dim 0. `timeout` is in seconds and includes retries; None means the
    client's timeout. Failed calls raise `braid.BraidError`.
    """

    def __init__(self, client: Client, info: TrainerInfo) -> None:
        """Creates a handle. Internal: use `Client.create_trainer` or `Client.trainer`."""
        self._client = client
        self._name = info.name
        self._model = info.model
        self._handle = Handle(client._channel, info)

    def __repr__(self) -> str:
        return f"<braid.Trainer {self._name!r} of model {self._model!r}>"

    @property
    def name(self) -> str:
        """Name of the trainer."""
        return self._name

    @property
    def model(self) -> str:
        """Model that the trainer was created from and publishes to."""
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
        batch_id: str | None = None,
        timeout: float | None = None,
    ) -> StepResult:
        """Runs one training step on the whole batch: forward, loss, backward, update.

        inputs: inputs by name, in the model's dtypes.
        targets: targets of the losses by name, {"target": y} by default: class indices (int64) or
            probabilities for cross_entropy, an array like the output for mse.
        lr, weight_decay, momentum: values for this update only, instead of the optimizer's.
        group_lr: learning rates for this update, one per parameter group.
        metric: value for ReduceLROnPlateau, instead of the loss.
        report_split: fill `chunks` of the result.
        batch_id: name of the batch in the `history`, at most 256 bytes.
        """
        request = _requests.step(
            lr, weight_decay, momentum, group_lr, metric, report_split, batch_id
        )
        tensors = _requests.batch(inputs, targets)
        return _replies.step_result(self._handle.operate("Step", request, timeout, tensors))

    def forward_backward(
        self,
        inputs: Tensors,
        targets: Tensors,
        *,
        report_split: bool = False,
        batch_id: str | None = None,
        timeout: float | None = None,
    ) -> StepResult:
        """Runs forward, loss and backward, and accumulates gradients for `optim_step`.

        Arguments are those of `step`. The result's `step`, the number of updates, does not change.
        """
        request = _requests.forward_backward(report_split, batch_id)
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
        """Updates the weights from the accumulated gradients, and clears the gradients.

        lr, weight_decay, momentum, group_lr, metric: as for `step`. With loss_mode "client" the
            server does not know the loss, so ReduceLROnPlateau requires `metric`.
        Raises FailedPrecondition if there are no gradients.
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
        batch_id: str | None = None,
        timeout: float | None = None,
    ) -> ForwardResult:
        """Runs a forward pass with the trainer's current weights.

        targets: as for `step`; if given, the result contains the loss.
        mode: "train" (updates buffers such as batch norm's statistics) or "eval" (changes nothing).
        batch_id: as for `step`.
        keep_graph: keep the graph for `backward` until the next operation. Requires mode "train".
            Checkpoints do not contain graphs: without a journal, after a checkpoint in between and
            a restart of the server, `backward` cannot be replayed.
        """
        request = _requests.forward(mode, report_split, keep_graph, batch_id)
        tensors = _requests.batch(inputs, targets)
        return _replies.forward_result(self._handle.operate("Forward", request, timeout, tensors))

    def backward(
        self, output_gradients: Tensors, *, timeout: float | None = None
    ) -> OperationResult:
        """Runs backward for the preceding `forward(keep_graph=True)`, with the caller's gradients.

        Accumulates gradients for `optim_step`.
        output_gradients: gradients of the loss with respect to the outputs, by name, with their
            shapes and dtypes. Omit outputs that the loss does not depend on.
        Raises FailedPrecondition if there is no graph.
        """
        tensors = {"output_gradients": output_gradients}
        reply = self._handle.operate("Backward", _requests.backward(), timeout, tensors)
        return _replies.operation_result(reply)

    def publish(
        self,
        model: str | None = None,
        *,
        wait_durable: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Publishes the trainer's weights as the next version of a model. Returns the version.

        Inference serves the version before this call returns, also if another version was pinned.
        The server then writes the version to its data directory, unless another version replaces
        it first. `Client.list_versions` shows the state of the files in `durability`.
        model: name of a served model with the same inputs, outputs and batching; None: the
            trainer's own.
        wait_durable: return when the version survives a crash of the server. It is then written
            even if another version replaces it. Without effect if the server has no data
            directory.
        Raises DataLoss if `wait_durable` is set and the version could not be written, for example
        because the disk is full. It is served nevertheless.
        """
        request = _requests.publish(model, wait_durable)
        reply = self._handle.operate("Publish", request, timeout)
        return _replies.published_version(reply, wait_durable)

    def stream(
        self,
        depth: int = 2,
        *,
        replay: Replay | None = None,
        buffer_operations: int | None = None,
        buffer_bytes: int | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """Returns a context manager that pipelines operations, up to `depth` in flight.

            with trainer.stream(depth=4) as stream:
                for x, y in loader:
                    future = stream.step({"x": x}, {"target": y})

        replay: function that returns (inputs, targets) of a batch again, by its index among the
            stream's step and forward_backward calls, from 0. It must return the same arrays as
            before. With it, the stream keeps no applied batches.
        buffer_operations, buffer_bytes: limits of the buffer for replay after a restart of the
            server; None: any number of operations, 512 MiB. If the buffer is full, a call waits for
            replies in flight, which may report a checkpoint, then requests a checkpoint. Without
            a checkpoint policy, applied operations are not kept.
        timeout: maximum seconds between replies while operations are in flight; None: the client's
            timeout.
        While the stream is open, use only the stream for operations.
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
        """Computes loss and metrics over `batches` of (inputs, targets), in eval mode.

        metrics: "accuracy", "top_k" (with `k`) and "confusion" for class indices; "mse" and "mae"
            for targets like the output; "binary_accuracy" for logits and masks; "iou" for class
            indices or masks; "label_error_rate" for "ctc". They use output and target of the first
            loss, or with loss_mode "client" the first output and "target".
        Does not change the trainer. Other operations may run between batches; each batch uses the
        weights at its time, and the result's `step` is that of the last batch. Iterates `batches`
        in the calling thread. Waits for the server before the first batch; raises Unavailable if
        the connection breaks later. Raises ValueError if there are no batches.
        """
        requests = _evaluate_requests(self._name, batches, metrics, k)
        call = partial(self._client._channel.call_feeding, TRAINING["Evaluate"], requests)
        return _replies.evaluation_result(self._handle.read_once(call, timeout))

    def save_checkpoint(self, *, timeout: float | None = None) -> Checkpoint:
        """Writes a checkpoint on the server, and returns it when it is durable.

        Raises FailedPrecondition if the server has no data directory.
        """
        return self._handle.save_checkpoint(timeout)

    def list_checkpoints(self, *, timeout: float | None = None) -> list[Checkpoint]:
        """Lists the trainer's checkpoints, the oldest first; a restored one is the newest."""
        method = TRAINING["ListCheckpoints"]
        request = method.request(trainer=self._name)
        reply = self._client._channel.call(method, request, timeout)
        return [_replies.checkpoint(checkpoint) for checkpoint in reply.checkpoints]

    def restore_checkpoint(
        self,
        name: str | None = None,
        *,
        step: int | None = None,
        timeout: float | None = None,
    ) -> TrainerInfo:
        """Restores the trainer's state from a checkpoint, or its state at a step.

        name: None: the newest. In this case the handle first replays operations that a restart of
            the server undid, if possible, because they may write checkpoints.
        step: restore the state after this number of updates instead of a checkpoint. The server
            recomputes a state between checkpoints from the journal.
        Raises NotFound if there is no such checkpoint or step; the message names those that there
        are. Raises FailedPrecondition for `step` if the trainer has no journal.
        """
        if name is not None and step is not None:
            raise ValueError("step: set together with name (set one of them)")
        method = TRAINING["RestoreCheckpoint"]
        request = method.request(trainer=self._name, checkpoint=name or "", step=step)
        with self._handle.lock:
            self._handle.check_free()
            deadline = self._client._channel.deadline(timeout)
            if name is None and step is None:
                self._handle.replay_lost(deadline)
            reply = self._client._channel.call(method, request, remaining(deadline))
            info = _replies.trainer_info(reply.trainer)
            self._handle.reset_to(info)
            return info

    def history(
        self,
        first_step: int | None = None,
        last_step: int | None = None,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> list[RecordedOperation]:
        """Returns the operations in the trainer's journal, the oldest first.

        These are the operations since the newest checkpoint. With `journal_history_bytes` or
        `journal_history_days` of `create_trainer`, earlier ones too, and those that a restore has
        undone.

        first_step, last_step: only operations after which the number of updates is in this range,
            inclusive. A failed one counts as the one before it.
        limit: return at most this many, the newest.
        Raises FailedPrecondition if the trainer has no journal.
        """
        method = TRAINING["GetHistory"]
        request = method.request(
            trainer=self._name, first_step=first_step, last_step=last_step, limit=limit or 0
        )
        call = partial(
            self._client._channel.call_streaming, method, request, _replies.recorded_operations
        )
        operations: list[RecordedOperation] = self._handle.read(call, timeout)
        return operations

    def fork(
        self, name: str, *, step: int | None = None, timeout: float | None = None
    ) -> Trainer:
        """Creates a trainer from the state and the arguments of this one. Returns a handle on it.

        Its step and sequence numbers continue from that state.
        name: name of the new trainer.
        step: state after this number of updates; None: the current state, which is saved as a
            checkpoint first. The server recomputes a state between checkpoints from the journal. If
            a restore made the trainer repeat a step, the newest repetition is used.
        Raises NotFound, with the available steps, if the state cannot be recomputed; AlreadyExists
        if the name is in use; FailedPrecondition if the server has no data directory, or for `step`
        if the trainer has no journal.
        """
        method = TRAINING["ForkTrainer"]
        request = method.request(trainer=self._name, new_name=name, step=step)

        def call(timeout: float) -> Trainer:
            reply = self._client._channel.call(method, request, timeout, attempts=1)
            return Trainer(self._client, _replies.trainer_info(reply.trainer))

        return self._handle.read_once(call, timeout)

    def replay(
        self,
        first_step: int | None = None,
        last_step: int | None = None,
        *,
        timeout: float | None = None,
    ) -> ReplayReport:
        """Recomputes steps on the server, and compares them with what was recorded.

        The server starts from a checkpoint, applies the operations of the journal, and compares
        each result, and the tensors of each checkpoint in the range, bit for bit. This needs as
        much memory as another trainer, takes as long as the steps took, and does not change this
        trainer.
        first_step, last_step: the steps to compare, inclusive; None: from the earliest that can be
            recomputed, to the last recorded one.
        Raises NotFound, with the available steps, if they cannot be recomputed; FailedPrecondition
        if the trainer has no journal.
        """
        method = TRAINING["ReplayTrainer"]
        request = method.request(
            trainer=self._name, first_step=first_step, last_step=last_step
        )
        call = partial(self._client._channel.call, method, request)
        return _replies.replay_report(self._handle.read_once(call, timeout))

    def state_dict(self, *, timeout: float | None = None) -> dict[str, np.ndarray]:
        """Returns parameters and buffers by name, in the module's order, between two operations.

        A bfloat16 tensor is returned as float32, which represents the same values. The result
        includes non-persistent buffers: load it with `module.load_state_dict(…, strict=False)`.
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
        format: str | None = None,
        *,
        trainable_only: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Writes the model with its current weights to a file. Returns the size in bytes.

        file: a path, which is replaced atomically, or a binary file object.
        format: "safetensors": parameters and buffers; "torchscript": for torch.jit.load, only for a
            TorchScript model; "package": model.pt2 of an exported pair, without weights, which
            "safetensors" returns as its model.safetensors.
            None: by the suffix: ".safetensors", ".pt" for "torchscript", ".pt2" for "package". A
            path without a suffix, or of an existing folder, receives all files of a version, which
            a server can serve; the folder must be new or empty. A file object receives
            "torchscript" from a TorchScript model and "safetensors" from a pair.
        trainable_only: write only the parameters that updates change, without buffers and frozen
            parameters, as "safetensors". Names are the module's, except for a LoRA model of peft:
            they are those of adapter_model.safetensors, so that peft loads the file.
        Raises InvalidArgument, with the suffixes that fit, for a format of another kind of model.
        """
        if format is not None and format not in _FORMATS:
            raise ValueError(f"format: {format!r} (expected one of {', '.join(_FORMATS)})")
        method = TRAINING["DownloadModel"]
        deadline = self._client._channel.deadline(timeout)

        def fetch(format: str, receive: _download.Receive) -> int:
            number = _TRAINABLE_SAFETENSORS if trainable_only else _FORMATS[format]
            request = method.request(trainer=self._name, format=number)
            stream = partial(self._client._channel.call_streaming, method, request, receive)
            size: int = self._handle.read(stream, remaining(deadline))
            return size

        if trainable_only:
            return _download.download_trainable(file, format, fetch)
        return _download.download(file, format, self._model, fetch)

    def info(self, *, timeout: float | None = None) -> TrainerInfo:
        """Returns the trainer's current state on the server."""
        return self._handle.info(timeout)

    def sync(self, *, timeout: float | None = None) -> TrainerInfo:
        """Synchronizes the handle with the server's last applied operation. Returns its state.

        Use it to continue with a different operation after an unknown outcome, after operations of
        another handle, or after the loss of operations that this handle cannot replay. Replays the
        lost operations that it can. Waits until operations that the server has received are
        applied or have failed. Keeps this handle's own ones for a replay after the next restart.
        """
        return self._handle.sync(timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """Deletes the trainer and its checkpoints. Published versions remain."""
        self._client.delete_trainer(self._name, timeout=timeout)


def _evaluate_requests(
    trainer: str,
    batches: Iterable[tuple[Tensors, Tensors]],
    metrics: Sequence[str],
    k: int,
) -> Iterator[bytes]:
    """Yields the serialized messages of an evaluation; the first one has the settings.

    Raises ValueError if there are no batches.
    """
    kind = TRAINING["Evaluate"].request
    if isinstance(metrics, str):
        raise ValueError(f"metrics: {metrics!r} (expected a list of names, such as [{metrics!r}])")
    request = kind(trainer=trainer, metrics=metrics, k=k)
    empty = True
    for inputs, targets in batches:
        yield _requests.serialize(request, _requests.batch(inputs, targets))
        request = kind()
        empty = False
    if empty:
        raise ValueError("batches: empty (expected at least one)")
