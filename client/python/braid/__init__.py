"""Client of Braid: data-parallel training and inference over gRPC.

    import braid

    client = braid.connect("127.0.0.1:8001")
    outputs = client.infer("fashion", {"x": array})
    trainer = client.create_trainer("fashion", loss="cross_entropy",
                                    optimizer={"name": "SGD", "lr": 0.1, "momentum": 0.9})
    result = trainer.step({"x": x}, {"target": y})
    version = trainer.publish()
    job = client.jobs.infer("fashion", data={"path": "test.parquet", "inputs": {"x": "image"}},
                            output={"path": "scores.parquet"})
    job.wait()
"""

import importlib
from typing import TYPE_CHECKING, Any

from braid._version import __version__

if TYPE_CHECKING:
    from braid._export import ExportError, ExportResult, export
    from braid._fit import FitResult, fit
    from braid.client import Client, connect
    from braid.data import (
        Column,
        Dataset,
        DatasetEntry,
        DatasetPreview,
        Datasets,
        StoredDataset,
    )
    from braid.errors import (
        Aborted,
        AlreadyExists,
        BraidError,
        Cancelled,
        DataLoss,
        DeadlineExceeded,
        FailedPrecondition,
        Internal,
        InvalidArgument,
        NotFound,
        OutOfRange,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
        Unimplemented,
        Unknown,
    )
    from braid.jobs import (
        Job,
        JobError,
        JobEvent,
        JobInfo,
        JobLogLine,
        JobProgress,
        JobResult,
        Jobs,
        JobTransition,
        Series,
    )
    from braid.results import (
        Checkpoint,
        Chunk,
        Device,
        DeviceMemory,
        EvaluationResult,
        ForwardResult,
        ModelMetadata,
        ModelStatus,
        ModelVersion,
        OperationResult,
        RecordedOperation,
        ReplayDifference,
        ReplayReport,
        ServerMetadata,
        StepResult,
        TensorMetadata,
        TrainerInfo,
        VersionedOutputs,
    )
    from braid.stream import Stream
    from braid.trainer import Trainer

__all__ = [
    "Aborted",
    "AlreadyExists",
    "BraidError",
    "Cancelled",
    "Checkpoint",
    "Chunk",
    "Client",
    "Column",
    "DataLoss",
    "Dataset",
    "DatasetEntry",
    "DatasetPreview",
    "Datasets",
    "DeadlineExceeded",
    "Device",
    "DeviceMemory",
    "EvaluationResult",
    "ExportError",
    "ExportResult",
    "FailedPrecondition",
    "FitResult",
    "ForwardResult",
    "Internal",
    "InvalidArgument",
    "Job",
    "JobError",
    "JobEvent",
    "JobInfo",
    "JobLogLine",
    "JobProgress",
    "JobResult",
    "JobTransition",
    "Jobs",
    "ModelMetadata",
    "ModelStatus",
    "ModelVersion",
    "NotFound",
    "OperationResult",
    "OutOfRange",
    "PermissionDenied",
    "RecordedOperation",
    "ReplayDifference",
    "ReplayReport",
    "ResourceExhausted",
    "Series",
    "ServerMetadata",
    "StepResult",
    "StoredDataset",
    "Stream",
    "TensorMetadata",
    "Trainer",
    "TrainerInfo",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "VersionedOutputs",
    "__version__",
    "connect",
    "export",
    "fit",
]

# Modules of those names, imported when a name is first used: gRPC, protobuf and numpy take longer
# to import than most commands of `braid` take to run.
_MODULES = ("_export", "errors", "results", "client", "stream", "trainer", "jobs", "data", "_fit")

if not TYPE_CHECKING:  # Type checkers would accept any name.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"braid.{name}")
        if name in __all__:
            for module in _MODULES:
                value = getattr(importlib.import_module(f"braid.{module}"), name, None)
                if value is not None:
                    globals()[name] = value
                    return value
        raise AttributeError(f"module 'braid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
