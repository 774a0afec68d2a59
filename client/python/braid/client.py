"""Client of one server: inference, server state, and trainers."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from braid import (
    _infer,
    _options,
    _replies,
    _specs,
    _tensors,
    _upload,
    errors,
    results,
)
from braid._channel import Channel
from braid._protocol import DEVICES, INFERENCE, MODELS, TRAINING
from braid._security import PemLike, Security
from braid._specs import LossLike
from braid._tensors import TensorLike
from braid.data import Datasets
from braid.jobs import Jobs
from braid.results import (
    Device,
    ModelMetadata,
    ModelStatus,
    ModelVersion,
    ServerMetadata,
    TrainerInfo,
    VersionedOutputs,
)
from braid.trainer import Trainer

_READY_POLL_SECONDS = 0.05
# Kinds of response parameters that are outputs. Server reports, such as `split`, are strings.
_NUMBERS = ("bool_param", "int64_param", "double_param")
# Prefixes of protocol parameters, such as `triton_final_response`.
_RESERVED = ("triton_", "braid_")


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
    """Returns a client of the server at `address`, for example "127.0.0.1:8001".

    timeout: default timeout of a call in seconds, including retries; None: no limit.
    max_message_bytes: size limit of a message; None: protobuf's limit of 2 GiB.
    wait_ready: seconds to wait until the server is ready; raises DeadlineExceeded afterwards.
        None: do not wait; the first call raises Unavailable if the server cannot be reached.
    token: authentication token for a server with --auth_tokens. Read it from a file or the
        environment. Without TLS the network can read it, so a remote address gives a warning.
    tls: True to use TLS; None: use it if `ca`, `certificate` or `key` is given.
    ca: certificate authorities to trust, as a path or as PEM bytes; None: gRPC's defaults, the
        public authorities.
    certificate, key: the client's certificate and key, likewise, for a server with
        --tls_client_ca.
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
    """Connection to one server, created by `connect`. Thread-safe.

    A context manager that closes the connection on exit. A method's `timeout` is in seconds and
    includes retries; None means the client's timeout. Failed calls raise `braid.BraidError`.

    If the server is unreachable and calls wait longer than a second, the logger "braid" says so
    once at level WARNING, and once more when the client has reconnected.
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
        """Creates a client without waiting for the server; see `connect`."""
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
        """Closes the connection. Calls in flight raise Cancelled. Trainers stay on the server."""
        self._channel.close()

    def infer(
        self,
        model: str,
        inputs: Mapping[str, TensorLike],
        *,
        version: int | str | None = None,
        outputs: Iterable[str] | None = None,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, np.ndarray | bool | int | float]:
        """Runs `model` on a batch and returns its outputs by name.

        inputs: numpy arrays, torch tensors on any device, or array-likes, by name. Dtypes must
            match the model's. Dim 0, or the model's `batch_dim`, is the batch and has the same size
            for all inputs. For an input that the server decodes, a list or an array of objects
            with one bytes or str per row: the content of an image file (not its path), or a text.
        version: number or label of a version; None: the pinned version, or else the newest.
        outputs: names of the outputs to return; None: all.
        batch_size: maximum rows of a call to the server; the outputs of several calls are joined.
            None: one call, or for more than 2 GiB, calls of at most 256 MiB each. All calls use the
            same version. A model with max_batch_size 0 takes only whole batches.
        timeout: of each call.
        Returns arrays, followed by outputs that are numbers (bool, int or float), sorted by name;
        a program of torch.export.save may return numbers. A bfloat16 output is returned as
        float32, which represents the same values.
        """
        tensors = _tensors.to_wire(inputs, "inputs", encoded=True)
        replies = list(
            _infer.replies(
                self._channel,
                model,
                _version_to_wire(version),
                tensors,
                outputs=outputs or (),
                batch_size=batch_size,
                timeout=timeout,
            )
        )
        parts = [_outputs(reply.message) for reply in replies]
        return parts[0] if len(parts) == 1 else _joined(parts, replies[0].batch_dims)

    def infer_versioned(
        self,
        model: str,
        inputs: Mapping[str, TensorLike],
        *,
        version: int | str | None = None,
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> VersionedOutputs:
        """Runs `model` like `infer`, in one call. Returns the version that computed the outputs, too.

        An actor of reinforcement learning sends `training_step` to the learner with its data.
        """
        (reply,) = _infer.replies(
            self._channel,
            model,
            _version_to_wire(version),
            _tensors.to_wire(inputs, "inputs", encoded=True),
            outputs=outputs or (),
            report_step=True,
            timeout=timeout,
        )
        message = reply.message
        known = "braid_training_step" in message.parameters
        step = message.parameters["braid_training_step"].int64_param if known else None
        return VersionedOutputs(_outputs(message), int(message.model_version), step)

    def is_ready(
        self,
        model: str | None = None,
        *,
        version: int | str | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Returns True if the server, or a model on it, accepts requests.

        version: number or label of a version of the model; None: any.

        Returns False if the server cannot be reached.
        """
        try:
            return self._ready(model, version, timeout)
        except errors.Unavailable:
            return False

    def _ready(self, model: str | None, version: int | None, timeout: float | None) -> bool:
        if model is None:
            method = INFERENCE["ServerReady"]
            request = method.request()
        else:
            method = INFERENCE["ModelReady"]
            request = method.request(name=model, version=_version_to_wire(version))
        return bool(self._channel.call(method, request, timeout, attempts=1).ready)

    def wait_ready(self, timeout: float) -> None:
        """Waits until the server is ready. Raises DeadlineExceeded after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            reason = "it is starting or draining"
            try:
                left = max(deadline - time.monotonic(), _READY_POLL_SECONDS)
                if self._ready(None, None, left):
                    return
            except errors.Unavailable as failure:
                self._channel.outage.on_wait(failure)
                reason = str(failure)
            if time.monotonic() + _READY_POLL_SECONDS >= deadline:
                raise errors.DeadlineExceeded(
                    f"{self._channel.address}: not ready after {timeout} seconds ({reason})"
                )
            time.sleep(_READY_POLL_SECONDS)

    def server_metadata(self, *, timeout: float | None = None) -> ServerMetadata:
        """Returns the server's name, version and protocol extensions."""
        method = INFERENCE["ServerMetadata"]
        reply = self._channel.call(method, method.request(), timeout)
        return ServerMetadata(reply.name, reply.version, tuple(reply.extensions))

    def models(self, *, timeout: float | None = None) -> list[ModelStatus]:
        """Lists all model versions in the repository, including those that failed to load."""
        method = INFERENCE["RepositoryIndex"]
        reply = self._channel.call(method, method.request(), timeout)
        return [
            ModelStatus(m.name, int(m.version) if m.version else None, m.state, m.reason)
            for m in reply.models
        ]

    def model_metadata(
        self, model: str, *, version: int | str | None = None, timeout: float | None = None
    ) -> ModelMetadata:
        """Returns a model's served versions, inputs and outputs, and the origin of one version.

        version: number or label of a version; None: the pinned version, or else the newest.
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
        """Lists the server's device slots with their statistics, in the order of its flags."""
        method = DEVICES["ListDevices"]
        return results.devices(self._channel.call(method, method.request(), timeout))

    @property
    def jobs(self) -> Jobs:
        """Jobs of the server, which train and score over its datasets without this client."""
        return Jobs(self._channel)

    @property
    def data(self) -> Datasets:
        """Datasets on the server that jobs can read."""
        return Datasets(self._channel)

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
        eval_modules: Sequence[str] | None = None,
        seed: int = 0,
        stages: Sequence[Mapping[str, Any]] | None = None,
        output_device: str | None = None,
        micro_batch: int | None = None,
        checkpoint_every: int | None = None,
        checkpoint_every_seconds: float | None = None,
        checkpoint_keep: int = 3,
        journal: str = "operations",
        journal_history_bytes: int | None = None,
        journal_history_days: float | None = None,
        idle_timeout: float | None = None,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> Trainer:
        """Creates a trainer on the server from the weights of a served model.

        Names, parameters and defaults are PyTorch's; docs/reference/training.md lists them.

        loss: a name ("cross_entropy"), a dict with "name" and parameters, a torch.jit.ScriptModule
            of output and target, or a list of these. Several losses are summed, each multiplied
            by its "factor". A loss of several outputs, such as "triplet_margin", names them in
            "outputs". With loss_mode "model": a dict such as {"output": "loss"}, or None.
            With loss_mode "client": None.
        optimizer: a name ("SGD"), or a dict with "name" and parameters.
        name: name of the trainer; None: derived from the model's name, with characters other than
            letters, digits, '_', '-' and '.' replaced. Raises AlreadyExists if it is in use, except
            with `exist_ok`.
        version: number of the model version to start from; None: the pinned version, or else the
            newest.
        loss_mode: "central": over the gathered outputs; "per_replica": on each replica, with the
            same result; "model": the model returns its loss; "client": the caller computes it
            between `forward` and `backward`.
        unweighted_mean: with loss_mode "model", average chunks without weighting by rows.
        parameter_groups: dicts with "pattern", searched in parameter names, and either "frozen" or
            any of "lr", "weight_decay", "momentum". The first match applies.
        schedule: name of a learning-rate scheduler, or a dict with "name" and parameters, counted
            in updates, and optionally "warmup": {"steps": ..., "start_factor": ...}. With
            loss_mode "client", "ReduceLROnPlateau" uses only the `metric` of `optim_step`.
        clip_grad_norm: maximum norm, or a dict with "max_norm" and "norm_type".
        clip_grad_value: maximum absolute value.
        precision: "bfloat16" or "float16", as in torch.autocast; None: the model's own.
        grad_scaler: dict for "float16": "init_scale", "growth_factor", "backoff_factor",
            "growth_interval".
        non_finite: handling of a non-finite loss or gradient: "fail", or "skip" the batch.
        sync: "auto", "reduce_broadcast" or "all_reduce"; the results are the same.
        sync_batch_norm: batch normalization over the whole batch instead of each chunk.
        eval_modules: patterns, searched in paths of submodules such as "backbone.bn1"; the modules
            found, and their submodules, run in evaluation mode in training, like PyTorch's
            `module.eval()`. An exported pair needs the same `eval_modules` in `braid.export`.
        seed: seed of random operators such as dropout.
        stages: dicts with "path", a submodule, and "devices"; None: the whole model on all
            devices.
        output_device: device that computes the loss; None: the last stage's primary device.
        micro_batch: maximum rows that a replica processes at once, except in a forward pass with
            `keep_graph`; None: its whole chunk.
        checkpoint_every, checkpoint_every_seconds: interval of background checkpoints, in
            operations and in seconds; None: disabled. With either, the client waits for a
            server that restarts.
        checkpoint_keep: number of newest checkpoints to keep; 0: all.
        journal: "operations": with a data directory, the server writes each operation to disk
            before it replies, so a crash loses none. "none": a crash loses the operations since the
            newest checkpoint, unless the client resends them.
        journal_history_bytes, journal_history_days: maximum size and age of the history that the
            server keeps for `Trainer.history`, `fork`, `replay` and `restore_checkpoint(step=)`.
            The size includes the batches, not the checkpoints: up to 16 more are kept. The server
            deletes the oldest operations when either limit is reached. None or 0: no limit; if
            neither is set, no history is kept.
        idle_timeout: seconds without an operation until the trainer expires; `restore_trainer`
            brings it back.
        exist_ok: if the name is in use, continue with that trainer after its last operation; an
            expired one is restored from its newest checkpoint. Raises AlreadyExists, with the
            first argument that differs, unless the trainer was created with the same arguments.
            The server compares them after it has filled in its defaults. It does not compare
            version, placement and outputs of losses if they are left out, nor the code of loss
            modules.
        Raises ValueError for an unknown name or parameter.
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
            "eval_modules": eval_modules,
            "seed": seed,
            "stages": stages,
            "output_device": output_device,
            "micro_batch": micro_batch,
            "checkpoint_every": checkpoint_every,
            "checkpoint_every_seconds": checkpoint_every_seconds,
            "checkpoint_keep": None if checkpoint_keep == 3 else checkpoint_keep,
            "journal": None if journal == "operations" else journal,
            "journal_history_bytes": journal_history_bytes,
            "journal_history_days": journal_history_days,
            "idle_timeout": idle_timeout,
        }
        method = TRAINING["CreateTrainer"]
        request = method.request(
            model=model,
            version=0 if version is None else _version_number(version),
            name=name or "",
            options=_options.to_proto(options),
            losses=_specs.losses_to_proto(loss, loss_mode),
            optimizer=_specs.optimizer_to_proto(optimizer),
            request_id=str(uuid.uuid4()),  # The server recognizes a retry by this ID.
            exist_ok=exist_ok,
        )
        reply = self._channel.call(method, request, timeout)
        return Trainer(self, _replies.trainer_info(reply.trainer))

    def trainer(self, name: str, *, timeout: float | None = None) -> Trainer:
        """Returns a handle on an existing trainer that continues after its last operation."""
        return Trainer(self, self._trainer_info(name, timeout))

    def restore_trainer(
        self, name: str, checkpoint: str | None = None, *, timeout: float | None = None
    ) -> Trainer:
        """Restores a trainer from a checkpoint, and returns a handle. checkpoint: None: the newest.

        Also restores an expired trainer, which `trainer` and `trainers` do not list. An active
        trainer loses all operations after the checkpoint, and its other handles detect this. Raises
        NotFound if there is no such trainer or checkpoint.
        """
        method = TRAINING["RestoreCheckpoint"]
        request = method.request(trainer=name, checkpoint=checkpoint or "")
        reply = self._channel.call(method, request, timeout)
        return Trainer(self, _replies.trainer_info(reply.trainer))

    def trainers(self, *, timeout: float | None = None) -> list[TrainerInfo]:
        """Lists all trainers on the server, sorted by name."""
        method = TRAINING["ListTrainers"]
        reply = self._channel.call(method, method.request(), timeout)
        return [_replies.trainer_info(trainer) for trainer in reply.trainers]

    def delete_trainer(self, name: str, *, timeout: float | None = None) -> None:
        """Deletes a trainer and its checkpoints. Raises NotFound if there is none."""
        method = TRAINING["DeleteTrainer"]
        try:
            self._channel.call(method, method.request(name=name), timeout)
        except errors.NotFound as error:
            if error.attempts == 1:
                raise
            # An earlier attempt may have deleted it, although its reply was lost.

    def rollback(self, model: str, version: int, *, timeout: float | None = None) -> int:
        """Serves an older version of `model` again. Returns the version that was served before.

        Pins the version unless it is the newest: versions that are exported or uploaded later are
        not served. `unpin`, a rollback to the newest version, or the next publish ends the pin. The
        next publish continues from the highest version number. The call is not retried, because it
        is not idempotent: after Unavailable, call it again. Raises NotFound with the available
        versions.
        """
        method = TRAINING["Rollback"]
        request = method.request(model=model, version=_version_number(version))
        return int(self._channel.call(method, request, timeout, attempts=1).previous_version)

    def list_versions(
        self, model: str | None = None, *, timeout: float | None = None
    ) -> list[ModelVersion]:
        """Lists the versions of `model`, served or not, by number. None: of all models.

        Raises NotFound if there is no such model.
        """
        method = MODELS["ListVersions"]
        return results.model_versions(
            self._channel.call(method, method.request(model=model or ""), timeout)
        )

    def pin(self, model: str, version: int, *, timeout: float | None = None) -> int:
        """Serves `version` to requests without a version. Returns the version served before.

        Loads the version if necessary. Versions that are exported or uploaded later are not served,
        until `unpin` or the next publish. Not retried, like `rollback`. Raises NotFound with the
        available versions.
        """
        method = MODELS["Pin"]
        request = method.request(model=model, version=_version_number(version))
        return int(self._channel.call(method, request, timeout, attempts=1).previous_version)

    def unpin(self, model: str, *, timeout: float | None = None) -> int:
        """Ends a pin and serves the newest version. Returns that version.

        No-op if no version is pinned.
        """
        method = MODELS["Unpin"]
        return int(self._channel.call(method, method.request(model=model), timeout).version)

    def set_label(
        self, model: str, label: str, version: int | None, *, timeout: float | None = None
    ) -> int | None:
        """Points `label`, for example "stable", at a version. None: removes the label.

        Requests may name the version by the label. A labelled version is served in addition to the
        others and cannot be deleted. Returns the version that had the label before. Not retried,
        like `rollback`. Raises NotFound for an unknown version, or if there is no label to remove.
        """
        method = MODELS["SetLabel"]
        number = 0 if version is None else _version_number(version)
        request = method.request(model=model, label=label, version=number)
        reply = self._channel.call(method, request, timeout, attempts=1)
        return int(reply.previous_version) or None

    def delete_version(self, model: str, version: int, *, timeout: float | None = None) -> None:
        """Deletes a published or uploaded version.

        Raises FailedPrecondition for the version that requests without a version get, for a pinned
        or labelled version, and for a version in the model repository; NotFound if there is none.
        """
        method = MODELS["DeleteVersion"]
        request = method.request(model=model, version=_version_number(version))
        try:
            self._channel.call(method, request, timeout)
        except errors.NotFound as error:
            if error.attempts == 1:
                raise
            # An earlier attempt may have deleted it, although its reply was lost.

    def upload_version(
        self, model: str, path: str | os.PathLike[str], *, timeout: float | None = None
    ) -> int:
        """Uploads a version of `model` to a server with --allow_model_upload. Returns its number.

        path: folder of a version, for example that of `ExportResult.path`, or the model file in it.
        The server assigns the number, loads the version, and serves it unless another version is
        pinned. The model must be served, and the version must fit its configuration. Not retried,
        like `rollback`. Raises FailedPrecondition if the server accepts no uploads, and ValueError
        if there is no model file.
        """
        return int(self._upload(model, path, timeout).version)

    def reserve_version(self, model: str, *, timeout: float | None = None) -> int:
        """Returns the next version number of `model`, which the server assigns only once.

        For a folder that is added to the model repository. The model need not exist yet.
        """
        method = MODELS["ReserveVersion"]
        return int(self._channel.call(method, method.request(model=model), timeout).version)

    def _upload(self, model: str, path: str | os.PathLike[str], timeout: float | None = None) -> Any:
        """Uploads a version. Returns the UploadVersionResponse."""
        requests = _upload.requests(model, _upload.files(path))
        return self._channel.call_feeding(MODELS["UploadVersion"], requests, timeout)

    def _trainer_info(self, name: str, timeout: float | None) -> TrainerInfo:
        method = TRAINING["GetTrainer"]
        reply = self._channel.call(method, method.request(name=name), timeout)
        return _replies.trainer_info(reply.trainer)


def _version_to_wire(version: int | str | None) -> str:
    return "" if version is None else str(version)


def _version_number(version: int) -> int:
    """Returns `version`. Raises ValueError if it is not the number of a version."""
    if isinstance(version, bool) or not isinstance(version, (int, np.integer)) or version < 1:
        raise ValueError(
            f"version: {version!r} (expected a number from 1; only inference takes labels, too)"
        )
    return int(version)


def _outputs(reply: Any) -> dict[str, np.ndarray | bool | int | float]:
    if len(reply.raw_output_contents) != len(reply.outputs):
        raise errors.Internal(
            f"raw_output_contents: the server sent {len(reply.raw_output_contents)} for "
            f"{len(reply.outputs)} outputs"
        )
    arrays = {
        tensor.name: _tensors.from_wire(tensor.datatype, tensor.shape, data)
        for tensor, data in zip(reply.outputs, reply.raw_output_contents)
    }
    return arrays | _numbers(reply)


def _joined(
    parts: Sequence[Mapping[str, Any]], batch_dims: Mapping[str, int]
) -> dict[str, np.ndarray | bool | int | float]:
    """Joins the outputs of consecutive parts of a batch."""
    for name, output in parts[0].items():
        if not isinstance(output, np.ndarray):
            raise ValueError(
                f"batch_size: output {name!r} is a number for each call (expected an array with a "
                "row for each row of the inputs)"
            )
    return {
        name: np.concatenate([part[name] for part in parts], batch_dims.get(name, 0))
        for name in parts[0]
    }


def _numbers(reply: Any) -> dict[str, bool | int | float]:
    """Returns the outputs that are numbers, which a response contains as parameters."""
    numbers = {}
    for name, parameter in sorted(reply.parameters.items()):
        kind = parameter.WhichOneof("parameter_choice")
        if kind in _NUMBERS and not name.startswith(_RESERVED):
            numbers[name] = getattr(parameter, kind)
    return numbers
