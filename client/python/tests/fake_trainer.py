"""Trainer of the fake server, with sequence numbers but without arithmetic.

`history` contains the applied operations. A checkpoint contains those up to a number. `restart`
returns to the newest checkpoint, like a restart of a server.
"""

from __future__ import annotations

import threading
import uuid

import grpc

from braid import _protocol

_Trainer = _protocol.message("braid.v1.Trainer")
_Checkpoint = _protocol.message("braid.v1.Checkpoint")
_HAVE_LOSS = ("Step", "ForwardBackward")


class FakeTrainer:
    """Fake trainer. history: (sequence, method, request's bytes) of each applied operation."""

    def __init__(self, name, request):
        self.request_id = request.request_id
        self.proto = _Trainer(
            name=name, model=request.model, base_version=request.version or 1,
            losses=request.losses, optimizer=request.optimizer, options=request.options,
            devices=["cpu:0", "cpu:1"], lr=0.1, id=uuid.uuid4().hex,
        )
        for loss in self.proto.losses:
            loss.ClearField("module")
        self.proto.lrs.add(lr=0.1)
        self.proto.lrs.add(group="^head", lr=0.01)
        self.proto.memory.add(device="cpu:0", current_bytes=10, peak_bytes=20)
        self.history = []
        self.checkpoints = []
        self.lock = threading.RLock()
        self._last = (None, None)
        self._keeps_graph = False
        self._version = 1
        self.durability = "PENDING"  # of published versions
        self._states = {0: self._state()}

    def apply(self, method, request, context):
        """Applies an operation, unless it is the last applied one. Returns the reply."""
        with self.lock:
            payload = request.SerializeToString()
            applied = self.proto.applied_sequence
            if request.sequence == applied:
                if payload != self._last[0]:
                    context.abort(grpc.StatusCode.ABORTED, f"{applied} was another request")
                reply = type(self._last[1])()
                reply.CopyFrom(self._last[1])
                reply.status.replayed = True
                return reply
            if request.sequence != applied + 1:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"expected {applied + 1}")
            reply = self._work(method, request, context)
            self._keeps_graph = getattr(request, "keep_graph", False)
            self.history.append((request.sequence, method, payload))
            self.proto.applied_sequence = request.sequence
            self.proto.last_operator = request.sender.client_id
            every = self.proto.options.checkpoints.every_operations
            if every and request.sequence % every == 0:
                self.checkpoint()
            reply.status.applied_sequence = request.sequence
            reply.status.durable_sequence = self.proto.durable_sequence
            reply.status.step = self.proto.step
            self._last = (payload, reply)
            self._states[request.sequence] = self._state()
            return reply

    def checkpoint(self):
        """Writes a checkpoint."""
        with self.lock:
            sequence = self.proto.applied_sequence
            self.proto.durable_sequence = sequence
            self.checkpoints.append(_Checkpoint(
                name=f"step-{self.proto.step:09}-sequence-{sequence:09}", step=self.proto.step,
                sequence=sequence, bytes=1000, created=1.5,
            ))
            return self.checkpoints[-1]

    def restart(self):
        """Returns to the newest checkpoint."""
        self.restore(self.proto.durable_sequence)

    def restore(self, sequence):
        with self.lock:
            durable = self.proto.durable_sequence
            proto, self._last = self._states[sequence]
            self.proto.CopyFrom(proto)
            self.proto.durable_sequence = durable
            self.history = [entry for entry in self.history if entry[0] <= sequence]
            self._keeps_graph = False

    def _state(self):
        proto = _Trainer()
        proto.CopyFrom(self.proto)
        return proto, self._last

    def _work(self, method, request, context):
        reply = _protocol.TRAINING[method].response()
        if method == "OptimStep" and not self.proto.accumulated:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no gradients")
        if method == "Backward" and not self._keeps_graph:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no graph")
        if method in ("Step", "OptimStep"):
            self.proto.step += 1
            self.proto.accumulated = 0
            reply.status.lr = request.hyper_parameters.lr or self.proto.lr
            reply.status.lrs.add(lr=reply.status.lr)
            reply.status.lrs.add(group="^head", lr=0.01)
        if method in ("ForwardBackward", "Backward"):
            self.proto.accumulated += 1
        if method in _HAVE_LOSS or (method == "Forward" and request.targets):
            reply.loss = self.proto.step
        if method == "Forward":
            reply.outputs.extend(request.inputs)
        if method == "Publish":
            self._version += 1
            reply.model, reply.version = self.proto.model, self._version
            kind = type(reply).DESCRIPTOR.fields_by_name["durability"].enum_type.values_by_name
            reply.durability = kind[f"DURABILITY_{self.durability}"].number
            reply.durability_reason = "disk full" if self.durability == "FAILED" else ""
        if getattr(request, "report_split", False):
            self._report(request.inputs[0].shape[0], reply.status)
        return reply

    @staticmethod
    def _report(rows, status):
        for device, share in (("cpu:0", rows - rows // 2), ("cpu:1", rows // 2)):
            status.chunks.add(
                device=device, rows=share, stage="features", input_shapes=[f"[{share}, 2]"],
                output_shapes=[f"[{share}, 3]", "[]"],
            )
        status.phases.add(name="forward", seconds=0.5)
        status.phases.add(name="reduce", seconds=0.25)
