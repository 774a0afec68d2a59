"""A trainer: a model that is trained on the server, one operation at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from braid import _protocol, _state_dict, _tensors, results
from braid._protocol import TRAINING
from braid._tensors import TensorLike
from braid.results import ForwardResult, OperationResult, StepResult, TrainerInfo

if TYPE_CHECKING:
    from braid.client import Client

_HyperParameters = _protocol.message("braid.v1.HyperParameters")
_ForwardRequest = TRAINING["Forward"].request
_MODES = {"train": _ForwardRequest.MODE_TRAIN, "eval": _ForwardRequest.MODE_EVAL}


class Trainer:
    """A handle on a trainer, from `Client.create_trainer` or `Client.trainer`.

    Thread-safe: operations that several threads ask for are applied one after the other.

    Every operation carries the number after the last one applied, so the server applies it once,
    however often it is sent. One that fails changes nothing and uses up no number. Where the
    outcome is not known (Unavailable, DeadlineExceeded, an interrupt), call the same operation
    with the same arguments again: it is applied now, or its recorded reply is returned. To go on
    with another one instead, call `sync` first.

    Arrays are numpy arrays or torch tensors, on any device, and what `numpy.asarray` takes; all
    arrays of an operation have one dim 0, the batch. `timeout` is in seconds, all attempts
    included; None is the client's. Failures are `braid.BraidError`s.
    """

    def __init__(self, client: Client, info: TrainerInfo) -> None:
        """For the package's own use."""
        self._client = client
        self._name = info.name
        self._model = info.model
        self._lock = threading.Lock()
        self._applied = info.applied_sequence  # Guarded by _lock.

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
        inputs: Mapping[str, TensorLike],
        targets: Mapping[str, TensorLike],
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        report_split: bool = False,
        timeout: float | None = None,
    ) -> StepResult:
        """One training step over the whole batch: forward, loss, backward, update.

        inputs: the model's inputs by name, in the model's datatypes.
        targets: the loss's target, {"target": y} unless the loss names another: class indices
            (int64) or probabilities for cross_entropy, an array like the output for mse.
        lr, weight_decay, momentum: for this update, in place of the optimizer's own.
        report_split: fill the result's `chunks`.
        """
        request = TRAINING["Step"].request(report_split=report_split)
        _set_tensors(request, inputs, targets)
        _set_hyper_parameters(request, lr, weight_decay, momentum)
        reply = self._operate("Step", request, timeout)
        return StepResult(loss=reply.loss, **results.operation_fields(reply.status))

    def forward_backward(
        self,
        inputs: Mapping[str, TensorLike],
        targets: Mapping[str, TensorLike],
        *,
        report_split: bool = False,
        timeout: float | None = None,
    ) -> StepResult:
        """Forward, loss and backward; adds to the gradients that `optim_step` will use.

        Takes what `step` takes. The result's `step` is the number of updates, so it stays.
        """
        request = TRAINING["ForwardBackward"].request(report_split=report_split)
        _set_tensors(request, inputs, targets)
        reply = self._operate("ForwardBackward", request, timeout)
        return StepResult(loss=reply.loss, **results.operation_fields(reply.status))

    def optim_step(
        self,
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        timeout: float | None = None,
    ) -> OperationResult:
        """One update from the accumulated gradients, which it clears.

        lr, weight_decay, momentum: for this update, in place of the optimizer's own.
        FailedPrecondition if there are no gradients.
        """
        request = TRAINING["OptimStep"].request()
        _set_hyper_parameters(request, lr, weight_decay, momentum)
        reply = self._operate("OptimStep", request, timeout)
        return OperationResult(**results.operation_fields(reply.status))

    def forward(
        self,
        inputs: Mapping[str, TensorLike],
        targets: Mapping[str, TensorLike] | None = None,
        *,
        mode: str = "train",
        report_split: bool = False,
        timeout: float | None = None,
    ) -> ForwardResult:
        """The forward pass alone, with the trainer's weights as they are now.

        targets: as for `step`; with them the result carries the loss.
        mode: "train" (updates buffers, as batch norm's statistics) or "eval" (changes nothing).
        """
        if mode not in _MODES:
            raise ValueError(f"unknown mode {mode!r}; known: {', '.join(_MODES)}")
        request = _ForwardRequest(mode=_MODES[mode], report_split=report_split)
        _set_tensors(request, inputs, targets or {})
        reply = self._operate("Forward", request, timeout)
        outputs = {t.name: _tensors.from_wire(t.datatype, t.shape, t.data) for t in reply.outputs}
        return ForwardResult(
            outputs=outputs,
            loss=reply.loss if reply.HasField("loss") else None,
            **results.operation_fields(reply.status),
        )

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
        reply = self._operate("Publish", TRAINING["Publish"].request(), timeout)
        return int(reply.version)

    def state_dict(self, *, timeout: float | None = None) -> dict[str, np.ndarray]:
        """Parameters and buffers by name, in the module's order, as between two operations.

        A bfloat16 tensor comes as float32, which holds the same values.
        """
        method = TRAINING["GetStateDict"]
        request = method.request(trainer=self._name)
        state: dict[str, np.ndarray] = self._client._channel.call_streaming(
            method, request, _state_dict.assemble, timeout
        )
        return state

    def info(self, *, timeout: float | None = None) -> TrainerInfo:
        """The trainer as it stands on the server."""
        return self._client._trainer_info(self._name, timeout)

    def sync(self, *, timeout: float | None = None) -> TrainerInfo:
        """Goes on from the number that the server last applied, and returns where it stands.

        For going on with another operation after one whose outcome is not known, and for a
        trainer that another handle has operated meanwhile.
        """
        with self._lock:
            info = self.info(timeout=timeout)
            self._applied = info.applied_sequence
            return info

    def delete(self, *, timeout: float | None = None) -> None:
        """Deletes the trainer and frees its memory; published versions stay."""
        self._client.delete_trainer(self._name, timeout=timeout)

    def _operate(self, method: str, request: Any, timeout: float | None) -> Any:
        with self._lock:
            request.trainer = self._name
            request.sequence = self._applied + 1
            reply = self._client._channel.call(TRAINING[method], request, timeout)
            self._applied = request.sequence
            return reply


def _set_tensors(
    request: Any, inputs: Mapping[str, TensorLike], targets: Mapping[str, TensorLike]
) -> None:
    wire_inputs = _tensors.to_wire(inputs, "inputs")
    wire_targets = _tensors.to_wire(targets, "targets")
    _tensors.check_fits(wire_inputs + wire_targets)
    for field, tensors in ((request.inputs, wire_inputs), (request.targets, wire_targets)):
        for tensor in tensors:
            field.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape, data=tensor.data()
            )


def _set_hyper_parameters(request: Any, *values: float | None) -> None:
    names = ("lr", "weight_decay", "momentum")
    given = {name: float(value) for name, value in zip(names, values) if value is not None}
    if given:
        request.hyper_parameters.CopyFrom(_HyperParameters(**given))
