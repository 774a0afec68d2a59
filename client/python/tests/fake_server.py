"""In-process fake server that records calls and injects faults.

Inference echoes its inputs. A trainer follows the rules of sequence numbers; its loss is the number
of updates. `fail` makes a method fail before or after its work; `withhold` loses several replies;
`restart` restarts the server.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from concurrent import futures
from dataclasses import dataclass

import grpc
import numpy as np

from braid import _protocol
from fake_data import FakeData
from fake_jobs import FakeJobs
from fake_trainer import FakeTrainer

PIECE_BYTES = 16
STREAM_METHODS = {
    "step": "Step", "forward_backward": "ForwardBackward", "optim_step": "OptimStep",
    "forward": "Forward", "backward": "Backward", "publish": "Publish",
}

_Any = _protocol.message("google.protobuf.Any")
_BadRequest = _protocol.message("google.rpc.BadRequest")
_Status = _protocol.message("google.rpc.Status")


@dataclass(frozen=True)
class Fault:
    code: grpc.StatusCode
    message: str
    after: bool
    crash: bool
    violations: tuple[tuple[str, str], ...]
    details: bytes | None


class FakeServer(grpc.GenericRpcHandler):
    """Fake server. Tests set its attributes.

    state: tensors of state dicts.
    file: content of downloads.
    pair: the model is an exported pair instead of a TorchScript module.
    batch_dims: dims of the batch of the model's tensors, by name.
    parameters: parameters of ModelInfer replies by name; numbers count as outputs.
    max_batch_size: that of the models.
    jobs, data: the services of jobs and datasets.
    calls: (method, request) of each received call, and of each operation of a stream.
    uptime: returns the reported uptime in seconds.
    late: functions to call once, each after a GetTrainer.
    pinned, labels: pinned version and versions by label of the model "fashion".
    reserved: last version number that was assigned.
    uploaded: contents of uploaded files by name.
    queued: functions to call once before a GetTrainer with `settled`, as pending work.
    """

    def __init__(self):
        self.calls = []
        self.ready = True
        self.batch_dims = {}
        self.parameters = {}
        self.max_batch_size = 64
        self.evaluates_loss = True
        self.state = {"weight": np.arange(12, dtype=np.float32).reshape(3, 4)}
        self.trainers = {}
        self.jobs = FakeJobs()
        self.data = FakeData()
        self._services = {
            **dict.fromkeys(_protocol.JOBS, self.jobs), **dict.fromkeys(_protocol.DATA, self.data),
        }
        self.edit_pieces = lambda pieces: pieces
        self.file = bytes(range(100))
        self.trainable_file = b""  # of FORMAT_TRAINABLE_SAFETENSORS
        self.pair = False
        self.uptime = lambda: 8.0
        self.late = deque()
        self.queued = deque()
        self.streams = 0
        self.pinned = None
        self.labels = {}
        self.reserved = 4
        self.uploaded = {}
        self._withheld = 0
        self._faults = defaultdict(deque)
        self._methods = {
            method.path: (name, method)
            for service in (
                _protocol.INFERENCE,
                _protocol.TRAINING,
                _protocol.MODELS,
                _protocol.DEVICES,
                _protocol.JOBS,
                _protocol.DATA,
            )
            for name, method in service.items()
        }

    def __enter__(self):
        self._start("127.0.0.1:0")
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self, address):
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[
            ("grpc.max_receive_message_length", -1),
        ])
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        self._server.start()

    def stop(self):
        """Closes all calls and connections, and stops listening."""
        self._server.stop(None).wait()

    def start_again(self):
        """Starts at the same address, with trainers at their checkpoints."""
        self.lose()
        self._start(self.address)

    def restart(self):
        self.stop()
        self.start_again()

    def lose(self):
        """Loses operations that are not durable, like a restart, but keeps connections."""
        for trainer in self.trainers.values():
            trainer.restart()
        started = time.monotonic()
        self.uptime = lambda: time.monotonic() - started

    def fail(self, method, code, message="injected fault", *, after=False, crash=False, skip=0,
             violations=(), details=None):
        """Makes the next call of `method` fail, or the one after `skip` others.

        after: fail after the work, so that the reply is lost.
        crash: lose operations that are not durable, like a restart.
        """
        self._faults[method].extend([None] * skip)
        self._faults[method].append(Fault(code, message, after, crash, tuple(violations), details))

    def forget_faults(self):
        """Removes all injected faults."""
        self._faults.clear()

    def withhold(self, replies):
        """Sends no reply to `replies` operations of a stream, then breaks its connection."""
        self._withheld = replies

    def received(self, method):
        """Returns the requests of `method`, in order."""
        return [request for name, request in self.calls if name == method]

    def service(self, handler_call_details):
        name, method = self._methods[handler_call_details.method]
        work = getattr(self._services.get(name, self), name)

        def unary(request, context):
            self.calls.append((name, request))
            fault = self._take_fault(name)
            if fault is not None and not fault.after:
                self._abort(context, fault)
            reply = work(request, context)
            if fault is not None:
                self._abort(context, fault)
            return reply

        def stream(request, context):
            self.calls.append((name, request))
            for index, reply in enumerate(work(request, context)):
                if index == 1 and self._faults[name]:
                    self._abort(context, self._take_fault(name))
                yield reply

        kinds = {
            "Stream": (grpc.stream_stream_rpc_method_handler, work),
            "Evaluate": (grpc.stream_unary_rpc_method_handler, work),
            "UploadVersion": (grpc.stream_unary_rpc_method_handler, work),
            "PutDataset": (grpc.stream_unary_rpc_method_handler, work),
        }
        default = ((grpc.unary_stream_rpc_method_handler, stream) if method.streams_response
                   else (grpc.unary_unary_rpc_method_handler, unary))
        kind, behavior = kinds.get(name, default)
        return kind(
            behavior,
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )

    def _take_fault(self, name):
        return self._faults[name].popleft() if self._faults[name] else None

    # inference.GRPCInferenceService

    def ServerLive(self, request, context):
        return _protocol.INFERENCE["ServerLive"].response(live=True)

    def ServerReady(self, request, context):
        return _protocol.INFERENCE["ServerReady"].response(ready=self.ready)

    def ModelReady(self, request, context):
        return _protocol.INFERENCE["ModelReady"].response(ready=request.name == "fashion")

    def ServerMetadata(self, request, context):
        return _protocol.INFERENCE["ServerMetadata"].response(
            name="fake", version="1", extensions=["model_repository"]
        )

    def ModelMetadata(self, request, context):
        reply = _protocol.INFERENCE["ModelMetadata"].response(
            name=request.name, versions=["1", "2"], platform="pytorch_libtorch"
        )
        reply.inputs.add(name="x", datatype="FP32", shape=[-1, 784])
        reply.outputs.add(name="output__0", datatype="FP32", shape=[-1, 10])
        return reply

    def ModelConfig(self, request, context):
        reply = _protocol.INFERENCE["ModelConfig"].response()
        reply.config.name = request.name
        reply.config.max_batch_size = self.max_batch_size
        reply.config.parameters["origin.trainer"].string_value = "first"
        reply.config.parameters["other"].string_value = "no origin"
        for name, dim in self.batch_dims.items():
            reply.config.parameters[f"batch_dim.{name}"].string_value = str(dim)
        return reply

    def RepositoryIndex(self, request, context):
        reply = _protocol.INFERENCE["RepositoryIndex"].response()
        reply.models.add(name="fashion", version="2", state="READY")
        reply.models.add(name="broken", state="UNAVAILABLE", reason="no version")
        return reply

    def ModelStatistics(self, request, context):
        reply = _protocol.INFERENCE["ModelStatistics"].response()
        stats = reply.model_stats.add(
            name="fashion", version="2", inference_count=80, execution_count=10
        )
        stats.inference_stats.success.count = 20
        stats.inference_stats.success.ns = 100_000_000
        return reply

    def ModelInfer(self, request, context):
        reply = _protocol.INFERENCE["ModelInfer"].response(
            model_name=request.model_name, model_version=request.model_version or "2"
        )
        wanted = {output.name for output in request.outputs}
        for tensor, data in zip(request.inputs, request.raw_input_contents):
            if not wanted or tensor.name in wanted:
                reply.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
                reply.raw_output_contents.append(data)
        if "report_step" in request.parameters:
            reply.parameters["braid_training_step"].int64_param = 7
        for name, (kind, value) in self.parameters.items():
            if kind == "string_param" or not wanted or name in wanted:
                setattr(reply.parameters[name], kind, value)
        return reply

    # braid.v1.ModelService

    def ListVersions(self, request, context):
        reply = _protocol.MODELS["ListVersions"].response()
        if request.model in ("", "fashion"):
            kinds = _protocol.message("braid.v1.ModelVersion")
            reply.versions.add(
                model="fashion", version=1, origin=kinds.ORIGIN_EXPORTED, state=kinds.STATE_IDLE,
                pinned=self.pinned == 1,
            )
            reply.versions.add(
                model="fashion", version=2, origin=kinds.ORIGIN_PUBLISHED, trainer="t", step=7,
                state=kinds.STATE_READY, serving=True, pinned=self.pinned == 2,
                labels=sorted(label for label, version in self.labels.items() if version == 2),
                created=1.5, durability=2,
            )
            reply.versions.add(
                model="fashion", version=2, origin=kinds.ORIGIN_EXPORTED,
                state=kinds.STATE_IGNORED, reason="rename the folder to 3",
            )
        elif request.model != "broken":
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model {request.model!r}")
        return reply

    def Pin(self, request, context):
        self._check_version(request, context)
        self.pinned = request.version
        return _protocol.MODELS["Pin"].response(previous_version=2)

    def Unpin(self, request, context):
        self.pinned = None
        return _protocol.MODELS["Unpin"].response(version=2)

    def SetLabel(self, request, context):
        before = self.labels.pop(request.label, 0)
        if request.version:
            self._check_version(request, context)
            self.labels[request.label] = request.version
        elif not before:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no label {request.label!r}")
        return _protocol.MODELS["SetLabel"].response(previous_version=before)

    def DeleteVersion(self, request, context):
        self._check_version(request, context)
        return _protocol.MODELS["DeleteVersion"].response()

    def ReserveVersion(self, request, context):
        self.reserved += 1
        return _protocol.MODELS["ReserveVersion"].response(version=self.reserved)

    def UploadVersion(self, requests, context):
        for request in requests:
            self.calls.append(("UploadVersion", request))
            self.uploaded[request.file] = self.uploaded.get(request.file, b"") + request.data
        fault = self._take_fault("UploadVersion")
        if fault is not None:
            self._abort(context, fault)
        return _protocol.MODELS["UploadVersion"].response(version=3, serving=self.pinned is None)

    def _check_version(self, request, context):
        if request.version > 2:
            context.abort(grpc.StatusCode.NOT_FOUND, "there are: 1, 2")

    # braid.v1.DeviceService

    def ListDevices(self, request, context):
        reply = _protocol.DEVICES["ListDevices"].response(uptime_seconds=self.uptime())
        device = reply.devices.add(name="cpu:0", kind=1, threads=1, samples=20)
        device.busy_seconds["forward"] = 2.5
        return reply

    # braid.v1.TrainingService

    def CreateTrainer(self, request, context):
        name = request.name or request.model
        trainer = self.trainers.get(name)
        if trainer is None:
            trainer = self.trainers[name] = FakeTrainer(name, request)
        elif trainer.request_id != request.request_id and not request.exist_ok:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"trainer {name!r} exists")
        return _protocol.TRAINING["CreateTrainer"].response(trainer=trainer.proto)

    def GetTrainer(self, request, context):
        while request.settled and self.queued:
            self.queued.popleft()()
        reply = _protocol.TRAINING["GetTrainer"].response(
            trainer=self._trainer(request.name, context).proto
        )
        if self.late:
            self.late.popleft()()
        return reply

    def ListTrainers(self, request, context):
        return _protocol.TRAINING["ListTrainers"].response(
            trainers=[trainer.proto for _, trainer in sorted(self.trainers.items())]
        )

    def DeleteTrainer(self, request, context):
        self._trainer(request.name, context)
        del self.trainers[request.name]
        return _protocol.TRAINING["DeleteTrainer"].response()

    def Step(self, request, context):
        return self._trainer(request.trainer, context).apply("Step", request, context)

    def ForwardBackward(self, request, context):
        return self._trainer(request.trainer, context).apply("ForwardBackward", request, context)

    def OptimStep(self, request, context):
        return self._trainer(request.trainer, context).apply("OptimStep", request, context)

    def Forward(self, request, context):
        return self._trainer(request.trainer, context).apply("Forward", request, context)

    def Backward(self, request, context):
        return self._trainer(request.trainer, context).apply("Backward", request, context)

    def Publish(self, request, context):
        return self._trainer(request.trainer, context).apply("Publish", request, context)

    def Stream(self, requests, context):
        self.streams += 1
        kind = _protocol.TRAINING["Stream"].response
        for request in requests:
            field = request.WhichOneof("operation")
            name, operation = STREAM_METHODS[field], getattr(request, field)
            self.calls.append((name, operation))
            fault = self._take_fault(name)
            if fault is not None and not fault.after:
                self._abort(context, fault)
            reply = self._trainer(operation.trainer, context).apply(name, operation, context)
            if fault is not None:
                self._abort(context, fault)
            if self._withheld:
                self._withheld -= 1
                if self._withheld == 0:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "withheld")
                continue
            yield kind(**{field: reply})

    def Evaluate(self, requests, context):
        messages = []
        for request in requests:
            messages.append(request)
            self.calls.append(("Evaluate", request))
            fault = self._take_fault("Evaluate")
            if fault is not None:
                self._abort(context, fault)
        reply = _protocol.TRAINING["Evaluate"].response(
            rows=sum(message.inputs[0].shape[0] for message in messages), step=3,
        )
        if self.evaluates_loss:
            reply.loss = 0.5
        for metric in messages[0].metrics:
            if metric == "confusion":
                reply.confusion.extend([1, 2, 3, 4])
            else:
                reply.metrics[metric] = 0.75
        return reply

    def SaveCheckpoint(self, request, context):
        return _protocol.TRAINING["SaveCheckpoint"].response(
            checkpoint=self._trainer(request.trainer, context).checkpoint()
        )

    def RestoreCheckpoint(self, request, context):
        trainer = self._trainer(request.trainer, context)
        for checkpoint in reversed(trainer.checkpoints):
            if request.checkpoint in ("", checkpoint.name):
                trainer.restore(checkpoint.sequence)
                return _protocol.TRAINING["RestoreCheckpoint"].response(
                    trainer=trainer.proto, checkpoint=checkpoint
                )
        context.abort(grpc.StatusCode.NOT_FOUND, f"no checkpoint {request.checkpoint!r}")

    def ListCheckpoints(self, request, context):
        return _protocol.TRAINING["ListCheckpoints"].response(
            checkpoints=self._trainer(request.trainer, context).checkpoints
        )

    def Rollback(self, request, context):
        if request.version > 2:
            context.abort(grpc.StatusCode.NOT_FOUND, "there are: 1, 2")
        return _protocol.TRAINING["Rollback"].response(
            previous_version=2, pinned=request.version < 2
        )

    def DownloadModel(self, request, context):
        model = self._trainer(request.trainer, context).proto.model
        if request.format == (request.FORMAT_TORCHSCRIPT if self.pair else request.FORMAT_PACKAGE):
            kind = "an exported pair" if self.pair else "a TorchScript module"
            self._abort(context, Fault(
                grpc.StatusCode.INVALID_ARGUMENT, f"model {model!r} is {kind}", False, False,
                (("format", kind),), None,
            ))
        file = self.file if request.format < 4 else self.trainable_file
        pieces = [
            _protocol.TRAINING["DownloadModel"].response(
                total_bytes=len(file), offset=offset, data=file[offset:offset + PIECE_BYTES],
            )
            for offset in range(0, len(file), PIECE_BYTES)
        ]
        return iter(self.edit_pieces(pieces))

    def GetStateDict(self, request, context):
        self._trainer(request.trainer, context)
        pieces = [
            _protocol.TRAINING["GetStateDict"].response(
                name=name, datatype=datatype, shape=array.shape, offset=offset, parameter=True,
                data=array.tobytes()[offset:offset + PIECE_BYTES],
            )
            for name, array in self.state.items()
            for datatype in [{"f": "FP32", "i": "INT64", "u": "BF16"}[array.dtype.kind]]
            for offset in range(0, max(array.nbytes, 1), PIECE_BYTES)
        ]
        return iter(self.edit_pieces(pieces))

    def _trainer(self, name, context):
        if name not in self.trainers:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no trainer {name!r}")
        return self.trainers[name]

    def _abort(self, context, fault):
        if fault.crash:
            self.lose()
        details = fault.details
        if fault.violations:
            details = _bad_request(fault)
        if details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(fault.code, fault.message)


def _bad_request(fault):
    bad_request = _BadRequest()
    for field, description in fault.violations:
        bad_request.field_violations.add(field=field, description=description)
    status = _Status(code=fault.code.value[0], message=fault.message)
    status.details.append(_Any(
        type_url="type.googleapis.com/google.rpc.BadRequest",
        value=bad_request.SerializeToString(),
    ))
    return status.SerializeToString()
