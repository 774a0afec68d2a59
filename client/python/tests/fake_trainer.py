"""A trainer of the fake server: the rules of the sequence number, and no arithmetic."""

from __future__ import annotations

import grpc

from braid import _protocol

_Trainer = _protocol.message("braid.v1.Trainer")


class FakeTrainer:
    def __init__(self, name, request):
        self.request_id = request.request_id
        self.proto = _Trainer(
            name=name, model=request.model, base_version=request.version or 1, loss=request.loss,
            optimizer=request.optimizer, devices=["cpu:0", "cpu:1"],
        )
        self._last = (None, None)
        self._version = 1

    def apply(self, method, request, context):
        """The reply to an operation, which is applied unless it was the last one applied."""
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
        self.proto.applied_sequence = request.sequence
        reply.status.applied_sequence = request.sequence
        reply.status.step = self.proto.step
        self._last = (payload, reply)
        return reply

    def _work(self, method, request, context):
        reply = _protocol.TRAINING[method].response()
        if method == "OptimStep" and not self.proto.accumulated:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no gradients")
        if method in ("Step", "OptimStep"):
            self.proto.step += 1
            self.proto.accumulated = 0
        if method == "ForwardBackward":
            self.proto.accumulated += 1
        if method in ("Step", "ForwardBackward") or (method == "Forward" and request.targets):
            reply.loss = self.proto.step
        if method == "Forward":
            reply.outputs.extend(request.inputs)
        if method == "Publish":
            self._version += 1
            reply.model, reply.version = self.proto.model, self._version
        if getattr(request, "report_split", False):
            rows = request.inputs[0].shape[0]
            reply.status.chunks.add(device="cpu:0", rows=rows - rows // 2)
            reply.status.chunks.add(device="cpu:1", rows=rows // 2)
        return reply
