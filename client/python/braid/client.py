"""The client of one server: inference, what the server has, and trainers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from braid import _options, _replies, _specs, _tensors, _wire, errors, results
from braid._channel import Channel
from braid._protocol import DEVICES, INFERENCE, TRAINING
from braid._security import PemLike, Security
from braid._specs import LossLike
from braid._tensors import TensorLike
from braid.results import Device, ModelMetadata, ModelStatus, ServerMetadata, TrainerInfo
from braid.trainer import Trainer

_READY_POLL_SECONDS = 0.05
# Kinds of a response's parameters that are outputs. Reports of the server, such as `split`, are
# strings.
_NUMBERS = ("bool_param", "int64_param", "double_param")
# Prefixes of the protocol's own parameters, such as `triton_final_response`.
_RESERVED = ("triton_", "braid_")
_RAW_INPUT_CONTENTS = (
    INFERENCE["ModelInfer"].request.DESCRIPTOR.fields_by_name["raw_input_contents"].number
)


def connect(
    address: str,
    *,
    timeout: float | None = 300.0,
    max_message_bytes: int | None = None,
    wait_ready: float | None = None,
    token: str | None = None,
    tls: bool | None = None,
    ca: PemLike | None = None,
    certificate: PemLike | None = None,
    key: PemLike | None = None,
) -> Client:
    """A client of the server at `address`, as in "127.0.0.1:8001".

    timeout: seconds for each call that is not given its own, all attempts included; None: no
        limit.
    max_message_bytes: the largest message to send or take; None: what protobuf holds, 2 GiB.
    wait_ready: seconds to wait for the server to be ready, then DeadlineExceeded. None: do not
        wait; a server that is not there shows at the first call, as Unavailable.
    token: sent with each call, for a server with --auth_tokens; read it from a file or the
        environment. Without TLS everybody on the way reads it, too: beyond this machine that is
        a warning.
    tls: whether to talk TLS; None: if any of the following is there.
    ca: the authorities that the server's certificate may be of, as a path or as PEM in bytes;
        None: gRPC's own, the public ones.
    certificate, key: the client's own, likewise, for a server with --tls_client_ca.
    """
    client = Client(
        address,
        timeout=timeout,
        max_message_bytes=max_message_bytes,
        token=token,
        tls=tls,
        ca=ca,
        certificate=certificate,
        key=key,
    )
    if wait_ready is not None:
        try:
            client.wait_ready(wait_ready)
        except BaseException:
            client.close()
            raise
    return client


class Client:
    """A connection to one server, from `connect`. Thread-safe.

    As a context manager it closes itself. A method's `timeout` is in seconds, all attempts
    included; None is the client's. Failures are `braid.BraidError`s.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = 300.0,
        max_message_bytes: int | None = None,
        token: str | None = None,
        tls: bool | None = None,
        ca: PemLike | None = None,
        certificate: PemLike | None = None,
        key: PemLike | None = None,
    ) -> None:
        """As `connect`, without waiting."""
        security = Security(token, tls, ca, certificate, key)
        security.warn_of_exposure(address)
        self._channel = Channel(address, timeout, max_message_bytes, security)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<braid.Client of {self._channel.address}>"

    def close(self) -> None:
        """Closes the connection; calls in flight raise Cancelled. Trainers stay on the server."""
        self._channel.close()

    def infer(
        self,
        model: str,
        inputs: Mapping[str, TensorLike],
        *,
        version: int | None = None,
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, np.ndarray | bool | int | float]:
        """Runs `model` on a batch and returns its outputs by name.

        inputs: numpy arrays, torch tensors on any device, or what `numpy.asarray` takes, by name,
            in the model's datatypes, all of one dim 0, the batch.
        version: None: the newest that is served.
        outputs: names of those to return; None: all.
        Returns arrays, and then, sorted by name, the outputs that are no tensors: Python's bool,
        int or float, as a program of torch.export.save may return them.
        A bfloat16 output comes as float32, which holds the same values.
        """
        tensors = _tensors.to_wire(inputs, "inputs")
        _tensors.check_fits(tensors)
        method = INFERENCE["ModelInfer"]
        request = method.request(model_name=model, model_version=_version_to_wire(version))
        contents = []
        for tensor in tensors:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            contents += _wire.array_field(_RAW_INPUT_CONTENTS, tensor.array)
        for name in outputs or ():
            request.outputs.add(name=name)
        payload = b"".join([request.SerializeToString(), *contents])
        return _outputs(self._channel.call(method, payload, timeout))

    def is_ready(
        self,
        model: str | None = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Whether the server, or a model on it, takes requests. False if it cannot be reached."""
        if model is None:
            method = INFERENCE["ServerReady"]
            request = method.request()
        else:
            method = INFERENCE["ModelReady"]
            request = method.request(name=model, version=_version_to_wire(version))
        try:
            return bool(self._channel.call(method, request, timeout, attempts=1).ready)
        except errors.Unavailable:
            return False

    def wait_ready(self, timeout: float) -> None:
        """Waits until the server is ready. DeadlineExceeded after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_ready(timeout=max(deadline - time.monotonic(), _READY_POLL_SECONDS)):
            if time.monotonic() + _READY_POLL_SECONDS >= deadline:
                raise errors.DeadlineExceeded(
                    f"{self._channel.address}: not ready after {timeout} seconds"
                )
            time.sleep(_READY_POLL_SECONDS)

    def server_metadata(self, *, timeout: float | None = None) -> ServerMetadata:
        """The server's name, version and protocol extensions."""
        method = INFERENCE["ServerMetadata"]
        reply = self._channel.call(method, method.request(), timeout)
        return ServerMetadata(reply.name, reply.version, tuple(reply.extensions))

    def models(self, *, timeout: float | None = None) -> list[ModelStatus]:
        """Every version of every model in the repository, also those that failed to load."""
        method = INFERENCE["RepositoryIndex"]
        reply = self._channel.call(method, method.request(), timeout)
        return [
            ModelStatus(m.name, int(m.version) if m.version else None, m.state, m.reason)
            for m in reply.models
        ]

    def model_metadata(
        self, model: str, *, version: int | None = None, timeout: float | None = None
    ) -> ModelMetadata:
        """A model's served versions, inputs, outputs, and where the version asked for is from.

        version: None: the newest served.
        """
        metadata, config = (
            self._channel.call(
                INFERENCE[name],
                INFERENCE[name].request(name=model, version=_version_to_wire(version)),
                timeout,
            )
            for name in ("ModelMetadata", "ModelConfig")
        )
        return results.model_metadata(metadata, config.config)

    def devices(self, *, timeout: float | None = None) -> list[Device]:
        """The server's device slots and what each has done, in the order of its flags."""
        method = DEVICES["ListDevices"]
        return results.devices(self._channel.call(method, method.request(), timeout))

    def create_trainer(
        self,
        model: str,
        *,
        optimizer: str | Mapping[str, Any],
        loss: LossLike | Sequence[LossLike] | None = None,
        name: str | None = None,
        version: int | None = None,
        loss_mode: str = "central",
        unweighted_mean: bool = False,
        parameter_groups: Sequence[Mapping[str, Any]] | None = None,
        schedule: str | Mapping[str, Any] | None = None,
        clip_grad_norm: float | Mapping[str, float] | None = None,
        clip_grad_value: float | None = None,
        precision: str | None = None,
        grad_scaler: Mapping[str, Any] | None = None,
        non_finite: str = "fail",
        sync: str = "auto",
        sync_batch_norm: bool = False,
        seed: int = 0,
        stages: Sequence[Mapping[str, Any]] | None = None,
        output_device: str | None = None,
        micro_batch: int | None = None,
        checkpoint_every: int | None = None,
        checkpoint_every_seconds: float | None = None,
        checkpoint_keep: int = 3,
        idle_timeout: float | None = None,
        timeout: float | None = None,
    ) -> Trainer:
        """Creates a trainer on the server from the weights of a model that it serves.

        Names, parameters and defaults are PyTorch's: docs/reference/training.md lists them.

        loss: a name ("cross_entropy"), a dict with "name" and parameters, a torch.jit.ScriptModule
            that takes output and target, or a list of those, which add up, each times its
            "factor". With loss_mode "model" a dict such as {"output": "loss"}, or None; with
            "client" None.
        optimizer: a name ("SGD"), or a dict with "name" and parameters.
        name: the trainer's; None: the model's name, or one made of it where that has other signs
            than letters, digits, '_', '-' and '.'. AlreadyExists if it is taken.
        version: whose weights to start from; None: the newest that is served.
        loss_mode: "central", over the gathered outputs; "per_replica", on each replica, with the
            same result; "model", which returns its loss; "client": `forward`, then `backward`.
        unweighted_mean: with loss_mode "model", the plain mean over chunks.
        parameter_groups: dicts of "pattern", found in parameters' names, and either "frozen" or
            any of "lr", "weight_decay", "momentum". A parameter belongs to the first that fits.
        schedule: a learning-rate scheduler's name, or a dict with "name" and parameters, counted
            in updates, and maybe "warmup": {"steps": ..., "start_factor": ...}. With loss_mode
            "client" "ReduceLROnPlateau" moves only by the `metric` of `optim_step`.
        clip_grad_norm: the largest norm, or a dict of "max_norm" and "norm_type".
        clip_grad_value: the largest absolute value.
        precision: "bfloat16" or "float16", as torch.autocast; None: the model's own.
        grad_scaler: for "float16": "init_scale", "growth_factor", "backoff_factor",
            "growth_interval".
        non_finite: what a loss or gradient that is not finite does: "fail", or "skip" the batch.
        sync: "auto", "reduce_broadcast" or "all_reduce"; the results are the same.
        sync_batch_norm: batch normalization over the whole batch instead of each chunk.
        seed: of dropout and the like.
        stages: dicts of "path", a submodule's, and "devices"; None: the whole model on all.
        output_device: where the loss is computed; None: the last stage's primary device.
        micro_batch: the most rows that a replica works on at once, but in a forward pass that keeps
            its graph; None: all of its chunk.
        checkpoint_every, checkpoint_every_seconds: have checkpoints written in the background,
            after so many operations, and seconds; None: not. With either, training goes on
            after the server was started again.
        checkpoint_keep: the newest that are kept; 0: all.
        idle_timeout: seconds without an operation after which the trainer is deleted;
            `restore_trainer` brings it back.
        ValueError for an unknown name or parameter.
        """
        options = {
            "loss_mode": None if loss_mode == "central" else loss_mode,
            "unweighted_mean": unweighted_mean,
            "parameter_groups": parameter_groups,
            "schedule": schedule,
            "clip_grad_norm": clip_grad_norm,
            "clip_grad_value": clip_grad_value,
            "precision": precision,
            "grad_scaler": grad_scaler,
            "non_finite": None if non_finite == "fail" else non_finite,
            "sync": None if sync == "auto" else sync,
            "sync_batch_norm": sync_batch_norm,
            "seed": seed,
            "stages": stages,
            "output_device": output_device,
            "micro_batch": micro_batch,
            "checkpoint_every": checkpoint_every,
            "checkpoint_every_seconds": checkpoint_every_seconds,
            "checkpoint_keep": None if checkpoint_keep == 3 else checkpoint_keep,
            "idle_timeout": idle_timeout,
        }
        method = TRAINING["CreateTrainer"]
        request = method.request(
            model=model,
            version=version or 0,
            name=name or "",
            options=_options.to_proto(options),
            losses=_specs.losses_to_proto(loss, loss_mode),
            optimizer=_specs.optimizer_to_proto(optimizer),
            request_id=str(uuid.uuid4()),  # By it the server knows the call if it is sent again.
        )
        reply = self._channel.call(method, request, timeout)
        return Trainer(self, _replies.trainer_info(reply.trainer))

    def trainer(self, name: str, *, timeout: float | None = None) -> Trainer:
        """A handle on a trainer that exists, going on from its last operation."""
        return Trainer(self, self._trainer_info(name, timeout))

    def restore_trainer(
        self, name: str, checkpoint: str | None = None, *, timeout: float | None = None
    ) -> Trainer:
        """A handle on a trainer that stands where a checkpoint of it stands; None: the newest.

        Brings back one that has expired, which `trainer` and `trainers` do not find. One that is
        at work loses what came after the checkpoint, and its other handles notice. NotFound if
        there is no such trainer, or no such checkpoint.
        """
        method = TRAINING["RestoreCheckpoint"]
        request = method.request(trainer=name, checkpoint=checkpoint or "")
        reply = self._channel.call(method, request, timeout)
        return Trainer(self, _replies.trainer_info(reply.trainer))

    def trainers(self, *, timeout: float | None = None) -> list[TrainerInfo]:
        """All trainers on the server, by name."""
        method = TRAINING["ListTrainers"]
        reply = self._channel.call(method, method.request(), timeout)
        return [_replies.trainer_info(trainer) for trainer in reply.trainers]

    def delete_trainer(self, name: str, *, timeout: float | None = None) -> None:
        """Deletes a trainer with its memory and checkpoints. NotFound if there is none."""
        method = TRAINING["DeleteTrainer"]
        try:
            self._channel.call(method, method.request(name=name), timeout)
        except errors.NotFound as error:
            if error.attempts == 1:
                raise
            # An earlier attempt may have deleted it and lost its reply; there is none now.

    def rollback(self, model: str, version: int, *, timeout: float | None = None) -> int:
        """Has `model` serve an older version again; returns the one that it served before.

        NotFound, listing what there is. The next publish goes on from the highest number. It is
        sent once, as a second time would have another result: after Unavailable, call it again.
        """
        method = TRAINING["Rollback"]
        request = method.request(model=model, version=version)
        return int(self._channel.call(method, request, timeout, attempts=1).previous_version)

    def _trainer_info(self, name: str, timeout: float | None) -> TrainerInfo:
        method = TRAINING["GetTrainer"]
        reply = self._channel.call(method, method.request(name=name), timeout)
        return _replies.trainer_info(reply.trainer)


def _version_to_wire(version: int | None) -> str:
    return "" if version is None else str(version)


def _outputs(reply: Any) -> dict[str, np.ndarray | bool | int | float]:
    if len(reply.raw_output_contents) != len(reply.outputs):
        raise errors.Internal(
            f"the server sent {len(reply.outputs)} outputs with "
            f"{len(reply.raw_output_contents)} raw contents"
        )
    arrays = {
        tensor.name: _tensors.from_wire(tensor.datatype, tensor.shape, data)
        for tensor, data in zip(reply.outputs, reply.raw_output_contents)
    }
    return arrays | _numbers(reply)


def _numbers(reply: Any) -> dict[str, bool | int | float]:
    """Returns the outputs that are numbers, which a response has as parameters."""
    numbers = {}
    for name, parameter in sorted(reply.parameters.items()):
        kind = parameter.WhichOneof("parameter_choice")
        if kind in _NUMBERS and not name.startswith(_RESERVED):
            numbers[name] = getattr(parameter, kind)
    return numbers
